# SPDX-License-Identifier: Apache-2.0
"""Backups: files that are whole or refused, restoring that is whole or nothing, and what hosts make of it."""
