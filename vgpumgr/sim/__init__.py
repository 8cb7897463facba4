# SPDX-License-Identifier: Apache-2.0
"""A discrete-event simulator of one shared engine, driven by the kernel module's own scheduler core."""
