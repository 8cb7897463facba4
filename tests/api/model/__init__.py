# SPDX-License-Identifier: Apache-2.0
"""The service against a model of it: random sequences of claims, hosts, backups and failures."""
