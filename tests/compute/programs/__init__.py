# SPDX-License-Identifier: Apache-2.0
"""Unmodified programs that run directly and through a tenant; tests compare the results."""
