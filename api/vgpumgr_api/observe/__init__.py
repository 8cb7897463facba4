# SPDX-License-Identifier: Apache-2.0
"""What the API shows of itself: metrics, log, traces. Nothing that it decides depends on any of it."""
