# SPDX-License-Identifier: Apache-2.0
"""Many clients at once, against real API processes that are killed meanwhile."""
