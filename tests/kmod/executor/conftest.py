# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.kmod.executor.slices import LONG_US, Slice
from tests.rig.gpu import Gpu


@pytest.fixture
def grants(gpu: Gpu) -> Iterator[Gpu]:
    """The accelerator with engine exec, which grants as much time as anything may take."""
    with gpu.lending(max_chunk_us=LONG_US):
        yield gpu


@pytest.fixture
def slices(grants: Gpu) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def blue(grants: Gpu, slices: ExitStack) -> Slice:
    return Slice(grants, slices, "blue")


@pytest.fixture
def green(grants: Gpu, slices: ExitStack) -> Slice:
    return Slice(grants, slices, "green")
