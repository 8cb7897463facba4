# SPDX-License-Identifier: Apache-2.0
"""Accounts, projects and their quotas. `enforcement` turns quotas and claims into what the kernel enforces."""
