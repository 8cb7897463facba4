# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the kernel module in virtual time: `make bench-kmod`."""
