# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, each with a named baseline in the same run."""
