# SPDX-License-Identifier: Apache-2.0
"""The service against a model of it: random lives of claims, hosts and backups, with whatever may break breaking."""
