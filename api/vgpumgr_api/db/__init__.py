# SPDX-License-Identifier: Apache-2.0
"""What is stored: tables, transactions and migrations."""
