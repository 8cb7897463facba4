# SPDX-License-Identifier: Apache-2.0
"""Chooses the GPU for a claim: the obstacles of each GPU (`obstacles`), and the best of the others (`candidates`).

`labels` and `ties` are what claims select by.
"""
