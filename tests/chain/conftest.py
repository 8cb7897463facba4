# SPDX-License-Identifier: Apache-2.0
"""Real guests under libvirt with slices attached; these tests run inside a lab host."""

from tests.rig.fixtures import gpu, module

__all__ = ["gpu", "module"]
