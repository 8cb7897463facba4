# SPDX-License-Identifier: Apache-2.0
"""Backups: a file is whole or rejected, a restore is whole or changes nothing, and hosts cope with the result."""
