# SPDX-License-Identifier: Apache-2.0
"""Observability of the API: metrics, log, traces. No decision of the API depends on it."""
