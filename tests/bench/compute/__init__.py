# SPDX-License-Identifier: Apache-2.0
"""The cost of real compute and how it is shared, compared with the same programs run directly on the same library."""
