# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside a named baseline of the same run."""
