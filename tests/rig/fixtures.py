# SPDX-License-Identifier: Apache-2.0
"""Fixtures of every test that runs inside a lab host; their conftest.py imports them."""

from collections.abc import Iterator

import pytest

from tests.rig.gpu import SECOND, Gpu, the_gpu
from tests.rig.leaks import leaks
from vgpumgr.control.netlink import Control


@pytest.fixture(scope="session")
def module() -> Iterator[Gpu]:
    """The module is loaded and bound once for all tests; unloading it at the end is itself a test."""
    with the_gpu() as gpu:
        yield gpu
        gpu.clear()
        lost = leaks()
        assert not lost, f"the kernel lost memory:\n{lost}"


@pytest.fixture
def gpu(module: Gpu) -> Iterator[Gpu]:
    """An accelerator without slices and tenants."""
    module.clear()
    yield module
    module.clear()


@pytest.fixture
def control(gpu: Gpu) -> Control:
    return gpu.control


@pytest.fixture
def second_gpu(gpu: Gpu) -> Iterator[Gpu]:
    """Another accelerator, without slices and tenants."""
    gpu.sysfs.bind(SECOND)
    second = Gpu(gpu.control, gpu.sysfs, SECOND)
    yield second
    second.clear()
    gpu.sysfs.unbind(SECOND)
