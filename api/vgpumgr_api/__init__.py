# SPDX-License-Identifier: Apache-2.0
"""The REST service: tenants, quotas, placement, claims. No code yet.

Only the walls stand: import-linter keeps ``routes -> services -> db`` and keeps this package and
``vgpumgr_agent`` apart, so that the code finds them in place when it comes.
"""
