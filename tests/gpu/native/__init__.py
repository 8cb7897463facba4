# SPDX-License-Identifier: Apache-2.0
"""Unmodified PyTorch in its tenants' turns on a real NVIDIA GPU: shares, caps, and what the fence costs."""
