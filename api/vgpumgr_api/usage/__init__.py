# SPDX-License-Identifier: Apache-2.0
"""The use by tenants: the ledger for bills, the counts of hosts' meters, and the closing of the books."""
