# SPDX-License-Identifier: Apache-2.0
"""Accounts, projects and their quotas. `enforcement` converts quotas and claims to what the kernel enforces."""
