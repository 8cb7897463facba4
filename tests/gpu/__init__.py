# SPDX-License-Identifier: Apache-2.0
"""Measurements on a real GPU, and fakes that test all of them without one."""
