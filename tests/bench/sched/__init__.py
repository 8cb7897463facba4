# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the scheduler and its policies; each module is one experiment."""
