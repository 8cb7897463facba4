# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of us, run directly and through a tenant, with their results compared."""
