# SPDX-License-Identifier: Apache-2.0
"""The API at fleet scale, in figures; `make bench-api`."""
