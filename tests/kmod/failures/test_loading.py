# SPDX-License-Identifier: Apache-2.0
"""Loading the module and binding it to a function without memory: either all of it succeeds or nothing remains."""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.failing import (
    THREAD_SAYS,
    WITHOUT_MEMORY,
    all_failing,
    each_failure,
    failures_possible,
    text_of_function,
)
from tests.rig.gpu import ADDRESS, Gpu, unload_module
from tests.rig.kernel import threads
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import DRIVER, write_file
from vgpumgr.errors import ControlUnavailableError

MODULE, GUEST_MODULE = Path("/lab/vgpumgr.ko"), Path("/lab/vgpu_guest.ko")
FUNCTION = Path("/sys/bus/pci/devices") / ADDRESS
BIND, UNBIND = (Path("/sys/bus/pci/drivers") / DRIVER / name for name in ("bind", "unbind"))
SYS_FINIT_MODULE = 313
# The driver core returns EINVAL when there is no memory for a module's directory of drivers.
LOADING_SAYS = WITHOUT_MEMORY | {errno.EINVAL}
TRACES = (
    Path("/sys/module/vgpumgr"),
    Path("/sys/bus/pci/drivers/vgpumgr"),
    Path("/sys/bus/mdev/drivers/vgpumgr_mdev"),
    Path("/sys/class/misc/vgpumgr-exec"),
    Path("/sys/kernel/debug/vgpumgr"),
    Path("/sys/class/mdev_bus") / ADDRESS,
)


def load(module: Path = MODULE) -> None:
    """In this thread, whose allocations fail. Raises OSError."""
    file = os.open(module, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syscall(SYS_FINIT_MODULE, file, b"", 0):
            raise OSError(ctypes.get_errno(), "finit_module")
    finally:
        os.close(file)


def speaks() -> bool:
    """Whether the netlink family exists."""
    try:
        Control().close()
    except ControlUnavailableError:
        return False
    return True


def driver() -> str | None:
    link = FUNCTION / "driver"
    return link.readlink().name if link.is_symlink() else None


def seen() -> object:
    """The changes that a driver makes to the host and to the function."""
    return (
        [trace for trace in TRACES if trace.exists()],
        speaks(),
        driver(),
        sorted(path.name for path in FUNCTION.iterdir()),
        (FUNCTION / "enable").read_text(),
        threads("vgpu"),
    )


@contextmanager
def unbound(gpu: Gpu) -> Iterator[None]:
    """The function has no driver, but waits for ours."""
    gpu.sysfs.unbind(ADDRESS)
    write_file(FUNCTION / "driver_override", f"{DRIVER}\n")
    try:
        yield
    finally:
        gpu.sysfs.bind(ADDRESS)


def test_loading_while_a_function_waits_for_the_driver(gpu: Gpu) -> None:
    """Loading binds the waiting function: a driver that fails must release what it had allocated.

    The allocations of binding itself have their own test: they are the majority, and each needs another load of the
    module.
    """
    drivers = []

    def unload() -> None:
        drivers.append(driver())
        unload_module()

    with gpu.unloaded():
        write_file(FUNCTION / "driver_override", f"{DRIVER}\n")
        with failures_possible(text_of_function("do_one_initcall"), but=text_of_function("really_probe")):
            count = each_failure(load, undo=unload, same=seen, says=LOADING_SAYS)
        load()
        unload()
    assert count > 50
    assert drivers[-1] == DRIVER


def test_loading_the_driver_of_guests() -> None:
    """On a host, which has none of its devices. Guests test it with a device."""
    traces = (Path("/sys/module/vgpu_guest"), Path("/sys/bus/pci/drivers/vgpu_guest"))
    with failures_possible(text_of_function("do_one_initcall")):
        count = each_failure(
            lambda: load(GUEST_MODULE),
            undo=lambda: unload_module("vgpu_guest"),
            same=lambda: [trace.exists() for trace in traces],
            says=LOADING_SAYS,
        )
    assert count > 5


def test_binding(gpu: Gpu) -> None:
    """This includes the attributes that the driver core makes for us."""
    with unbound(gpu), failures_possible(text_of_function("device_driver_attach")):
        count = each_failure(
            lambda: write_file(BIND, f"{ADDRESS}\n"), undo=lambda: write_file(UNBIND, f"{ADDRESS}\n"), same=seen
        )
    assert count > 50


def test_binding_without_any_memory_for_events(gpu: Gpu) -> None:
    """The memory is allocated page by page if there is no single block, so that no single failure prevents it."""
    with unbound(gpu):
        before = seen()
        with failures_possible(text_of_function("vgpu_events_start")), all_failing() as failed:
            with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
                write_file(BIND, f"{ADDRESS}\n")
            assert failed() > 1
        assert seen() == before


def test_binding_without_a_thread(gpu: Gpu) -> None:
    """A thread of the kernel creates threads for us."""
    with unbound(gpu), failures_possible(text_of_function("kthreadd")):
        count = each_failure(
            lambda: write_file(BIND, f"{ADDRESS}\n"),
            undo=lambda: write_file(UNBIND, f"{ADDRESS}\n"),
            same=seen,
            of=threads("kthreadd"),
            says=THREAD_SAYS,
        )
    assert count > 5
