# SPDX-License-Identifier: Apache-2.0
"""Faults to seed into copies of the scheduler core; each breaks one rule."""
