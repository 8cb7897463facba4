# SPDX-License-Identifier: Apache-2.0
"""What all resources have in common: names, pages, patches, generations, and requests that are sent again."""
