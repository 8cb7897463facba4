# SPDX-License-Identifier: Apache-2.0
"""Requests of the executor of a slice whose engine lends, and of the slice's VMM, without memory."""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.kmod.test_windows import BAR2, function
from tests.rig.failing import each_failure
from tests.rig.gpu import Gpu
from tests.rig.leasing import PAGE, State, bound
from tests.rig.settings import settings

pytestmark = pytest.mark.usefixtures("reached")


@pytest.fixture
def uuid(gpu: Gpu) -> Iterator[str]:
    with gpu.leasing():
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        yield gpu.slice("blue")


@pytest.fixture
def seen(gpu: Gpu) -> Callable[[], object]:
    return lambda: settings(gpu.control, gpu.sysfs)


def surely(call: Callable[[int], object], number: int) -> None:
    """Repeat the call if the injected failure hit this call itself."""
    try:
        call(number)
    except OSError:
        call(number)


def nothing() -> None:
    """The undo step of an action that is undone already."""


def test_binding_an_executor(uuid: str, seen: Callable[[], object]) -> None:
    def bind() -> None:
        with bound(uuid):
            pass

    assert each_failure(bind, undo=nothing, same=seen) >= 2


def test_a_childs_files_and_pages(uuid: str) -> None:
    """Another child can use the window afterwards, whether or not this child was created."""
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)

        def serve() -> None:
            with ExitStack() as stack:
                stack.callback(surely, guest.open, 0)
                stack.callback(surely, guest.close, 0)
                stack.callback(surely, executor.lost, 0)
                files = executor.window(0)
                for fd in files:
                    stack.callback(os.close, fd)
                for fd in files[1:]:
                    stack.enter_context(mmap.mmap(fd, PAGE, prot=mmap.PROT_READ))

        assert each_failure(serve, undo=nothing, same=lambda: guest.state(0)) >= 5
        assert guest.state(0) is State.OPEN


def test_the_region_of_the_windows(uuid: str, seen: Callable[[], object]) -> None:
    with function(uuid) as guest:
        count = each_failure(lambda: guest.device.region(BAR2), undo=nothing, same=seen)
    assert count >= 1
