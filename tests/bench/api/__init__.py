# SPDX-License-Identifier: Apache-2.0
"""What the API does at fleet scale, in figures; `make bench-api`."""
