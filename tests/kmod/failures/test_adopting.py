# SPDX-License-Identifier: Apache-2.0
"""Adopting and releasing a function without memory."""

from pathlib import Path

import pytest

from tests.rig import vendor
from tests.rig.failing import WITHOUT_MEMORY, each_failure
from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.kernel import threads

pytestmark = pytest.mark.usefixtures("reached")

FUNCTION = Path("/sys/bus/pci/devices") / ADDRESS


def test_adopting(gpu: Gpu) -> None:
    """The function's driver keeps it all the time."""

    def seen() -> object:
        return (
            gpu.control.gpus(),
            gpu.sysfs.gpus(),
            gpu.sysfs.driver(ADDRESS),
            sorted(path.name for path in FUNCTION.iterdir()),
            (FUNCTION / "enable").read_text(),
            threads("vgpu/"),
        )

    with vendor.has_function(gpu.sysfs):
        count = each_failure(
            lambda: gpu.control.adopt_gpu(ADDRESS),
            undo=lambda: gpu.control.release_gpu(ADDRESS),
            same=seen,
            says=WITHOUT_MEMORY,
        )
    assert count > 20
