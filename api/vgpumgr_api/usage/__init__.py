# SPDX-License-Identifier: Apache-2.0
"""What tenants used: the ledger that bills are made of, what hosts' meters counted, and books that are closed."""
