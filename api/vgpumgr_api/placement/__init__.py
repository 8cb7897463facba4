# SPDX-License-Identifier: Apache-2.0
"""Chooses the GPU for a claim: `obstacles` rules GPUs out, and `candidates` chooses the best of the others.

`labels` and `ties` are what claims select by.
"""
