# SPDX-License-Identifier: Apache-2.0
"""The kernel module alone, driven through VFIO; these tests run inside a lab host, on every supported kernel.

A kernel splat during any of them fails the whole run: the lab looks for it at the end.
"""

from tests.rig.fixtures import control, gpu, module

__all__ = ["control", "gpu", "module"]
