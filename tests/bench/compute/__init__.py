# SPDX-License-Identifier: Apache-2.0
"""What real compute costs and how it is shared, beside the same programs run directly on the same library."""
