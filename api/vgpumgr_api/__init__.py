# SPDX-License-Identifier: Apache-2.0
"""The REST service: tenants, quotas, placement, claims, and what hosts shall have.

`routes` parse and answer, `services` decide, `db` stores; imports go in that direction only.
"""
