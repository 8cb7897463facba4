# SPDX-License-Identifier: Apache-2.0
"""Storage: tables, transactions and migrations."""
