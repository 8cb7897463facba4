# SPDX-License-Identifier: Apache-2.0
"""Which GPU a claim gets: what stands in the way of each (`obstacles`), which of the others is best (`candidates`).

`labels` and `ties` are what claims select by.
"""
