# SPDX-License-Identifier: Apache-2.0
"""Many concurrent clients against real API processes, some of which are killed meanwhile."""
