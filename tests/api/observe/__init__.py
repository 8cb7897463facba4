# SPDX-License-Identifier: Apache-2.0
"""What operators see of the API: metrics, log, traces, readiness, and its shutdown."""
