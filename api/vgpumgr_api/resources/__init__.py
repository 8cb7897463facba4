# SPDX-License-Identifier: Apache-2.0
"""What all resources share: names, pages, patches, generations, and repeated requests."""
