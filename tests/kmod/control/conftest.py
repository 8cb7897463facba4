# SPDX-License-Identifier: Apache-2.0
"""Netlink and sysfs of the real module; see tests/kmod/conftest.py for where these tests run."""

from collections.abc import Iterator

import pytest

from tests.rig.gpu import ADDRESS as GPU
from tests.rig.gpu import Gpu
from vgpumgr.control.sysfs import Sysfs


@pytest.fixture
def host(gpu: Gpu) -> Iterator[Sysfs]:
    memory_total = gpu.sysfs.read_gpu(GPU, "memory_total")
    yield gpu.sysfs
    gpu.sysfs.write_gpu(GPU, "memory_total", memory_total)
