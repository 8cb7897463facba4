# SPDX-License-Identifier: Apache-2.0
"""Measurements on a real GPU, and the fakes on which everything about them is proven without one."""
