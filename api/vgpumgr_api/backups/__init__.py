# SPDX-License-Identifier: Apache-2.0
"""Backups of the whole database in one file, independent of the engine: `make` writes, `restore` restores."""
