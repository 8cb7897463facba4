# SPDX-License-Identifier: Apache-2.0
"""A function that its vendor's driver keeps is shared, and functions that must not be adopted are refused. Adopting
changes nothing of the function itself."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.kmod.test_leases import served
from tests.rig import vendor
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.migration import STOP, set_state
from tests.rig.settings import refusal, settings
from tests.rig.vfio import opened
from vgpumgr.control.events import Watch
from vgpumgr.control.model import Event
from vgpumgr.control.netlink import Control
from vgpumgr.control.protocol import Command, GpuAttribute
from vgpumgr.control.wire import encode_attribute, encode_value
from vgpumgr.errors import (
    AlreadyExistsError,
    BusyError,
    InvalidFieldError,
    NotPermittedError,
    RefusedError,
    UnknownGpuError,
)

FUNCTION = Path("/sys/bus/pci/devices") / ADDRESS
ABSENT = "0000:00:1f.7"
MEMORY_CLASSES = ["mem16m", "mem1g", "mem256m", "mem64m"]


@pytest.fixture
def vendors(gpu: Gpu) -> Iterator[Gpu]:
    """The function, bound to its vendor's driver."""
    with vendor.has_function(gpu.sysfs):
        yield gpu


@pytest.fixture
def adopted(vendors: Gpu) -> Iterator[Gpu]:
    with vendor.adopted(vendors) as gpu:
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        yield gpu


def function() -> object:
    """The parts of a function that a driver may change: configuration space, whether it is enabled, its interrupts."""
    return (FUNCTION / "config").read_bytes(), (FUNCTION / "enable").read_text(), (FUNCTION / "msi_bus").read_text()


def entries_of_function() -> list[str]:
    return sorted(path.name for path in FUNCTION.iterdir())


def refused_with(act: Callable[[], object], kind: type[RefusedError], number: int, words: str) -> None:
    found = refusal(act)
    assert (type(found), found.errno, found.field) == (kind, number, "name")
    assert words in found.reason


def test_an_adopted_gpu_is_one_as_any_and_its_function_stays_what_it_is(vendors: Gpu) -> None:
    before, entries = function(), entries_of_function()
    vendors.control.adopt_gpu(ADDRESS)
    found = vendors.control.gpu(ADDRESS)
    assert (found.engine, found.driver, found.adopted, found.attach) == ("lease", vendor.DRIVER, True, "any")
    assert vendors.sysfs.gpus() == [ADDRESS]
    assert [kind.id for kind in vendors.sysfs.types(ADDRESS)] == [f"{vendor.DRIVER}-{name}" for name in MEMORY_CLASSES]
    assert vendors.sysfs.driver(ADDRESS) == vendor.DRIVER
    assert function() == before
    vendors.control.release_gpu(ADDRESS)
    assert vendors.control.gpus() == []
    assert vendors.sysfs.gpus() == []
    assert function() == before
    assert entries_of_function() == entries


def test_a_gpu_that_is_bound_to_our_driver_says_so(gpu: Gpu) -> None:
    found = gpu.control.gpu(ADDRESS)
    assert (found.driver, found.adopted) == ("vgpumgr", False)


def test_its_attributes_are_those_of_any_gpu_but_the_engine_is_for_executors(adopted: Gpu) -> None:
    sysfs = adopted.sysfs
    assert sysfs.read_gpu(ADDRESS, "engines") == "lease"
    assert isinstance(refusal(lambda: sysfs.write_gpu(ADDRESS, "engine", "soft")), RefusedError)
    adopted.control.delete_tenant(ADDRESS, "blue")
    for engine in ("soft", "edu"):
        assert refusal(partial(sysfs.write_gpu, ADDRESS, "engine", engine)).errno == errno.EOPNOTSUPP
    sysfs.write_gpu(ADDRESS, "memory_total", 1 << 30)
    sysfs.write_gpu(ADDRESS, "attach", "permit")
    sysfs.write_gpu(ADDRESS, "policy", "fixed_share places=4")
    found = adopted.control.gpu(ADDRESS)
    assert (found.engine, found.memory_total_bytes, found.attach) == ("lease", 1 << 30, "permit")
    assert (found.policy, found.places) == ("fixed_share", 4)


def test_it_may_be_closed_to_vms_without_a_permit_from_the_beginning(vendors: Gpu) -> None:
    vendors.control.adopt_gpu(ADDRESS, attach="permit")
    try:
        uuid = vendors.slice()
        with pytest.raises(PermissionError), opened(uuid):
            pass
        vendors.sysfs.remove(uuid)
    finally:
        vendors.control.release_gpu(ADDRESS)


def test_its_slices_are_lent_the_accelerator(adopted: Gpu) -> None:
    with served(adopted.slice("blue")) as blue:
        worker = blue.child()
        assert worker.start() == 1
        poll(lambda: adopted.slice_stats(blue.uuid).run_ns > 0)


def test_its_slices_cannot_be_saved(adopted: Gpu) -> None:
    with opened(adopted.slice("blue")) as device, pytest.raises(OSError, match=os.strerror(errno.ENOTTY)):
        set_state(device, STOP)


def test_what_is_shared_already_is_not_adopted(gpu: Gpu) -> None:
    """This holds for a function of our driver, and for an adopted one of its vendor's driver."""
    refused_with(lambda: gpu.control.adopt_gpu(ADDRESS), AlreadyExistsError, errno.EEXIST, "shared already")
    with vendor.has_function(gpu.sysfs), vendor.adopted(gpu):
        before = settings(gpu.control, gpu.sysfs)
        refused_with(lambda: gpu.control.adopt_gpu(ADDRESS), AlreadyExistsError, errno.EEXIST, "shared already")
        assert settings(gpu.control, gpu.sysfs) == before


@pytest.mark.parametrize("name", [ABSENT, "", "x", "0000:00:10", "00:10.0", f"{ADDRESS[:-1]}8", "../" + ADDRESS])
def test_what_is_no_function_is_not_adopted(gpu: Gpu, name: str) -> None:
    refused_with(lambda: gpu.control.adopt_gpu(name), UnknownGpuError, errno.ENODEV, "no such PCI function")
    assert refusal(lambda: gpu.control.release_gpu(name)).errno == errno.ENODEV


def test_a_request_needs_a_name_and_a_known_word_for_attach(vendors: Gpu) -> None:
    control = vendors.control
    for command in (Command.GPU_ADOPT, Command.GPU_RELEASE):
        assert refusal(partial(control.request, command, b"")).errno == errno.EINVAL
    assert isinstance(refusal(lambda: control.adopt_gpu(ADDRESS, attach="all")), InvalidFieldError)
    name = encode_attribute(GpuAttribute.NAME, encode_value("string", ADDRESS))
    attach = encode_attribute(GpuAttribute.ATTACH, encode_value("u32", 2))
    assert refusal(lambda: control.request(Command.GPU_ADOPT, name + attach)).errno == errno.ERANGE
    assert control.gpus() == []


def test_a_function_without_a_driver_is_not_adopted(vendors: Gpu) -> None:
    vendors.sysfs.unbind(ADDRESS)
    refused_with(lambda: vendors.control.adopt_gpu(ADDRESS), RefusedError, errno.ENXIO, "no driver")


def test_a_function_whose_driver_shares_it_is_not_adopted(gpu: Gpu) -> None:
    vendor.load()
    vendor.set_option("shares", True)
    with vendor.has_function(gpu.sysfs):
        refused_with(lambda: gpu.control.adopt_gpu(ADDRESS), RefusedError, errno.EOPNOTSUPP, "by itself")
        assert (FUNCTION / "mdev_supported_types").is_dir()
        assert gpu.control.gpus() == []


def test_a_function_is_not_adopted_while_its_driver_lets_go_of_it(vendors: Gpu) -> None:
    """Nor does it wait for such a function, which could take for ever."""
    vendor.set_option("slow", True)
    unbinder = threading.Thread(target=vendors.sysfs.unbind, args=(ADDRESS,), daemon=True)
    unbinder.start()
    poll(vendor.is_letting_go)
    refused_with(lambda: vendors.control.adopt_gpu(ADDRESS), RefusedError, errno.EAGAIN, "try again")
    assert unbinder.is_alive()
    vendor.set_option("slow", False)
    unbinder.join(timeout=30)
    assert not unbinder.is_alive()


def not_permitted(act: Callable[[Control], None]) -> bool:
    """Whether this is the answer to a child process without root, which inherits no socket."""
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            with Control() as control:
                status = 0 if isinstance(refusal(lambda: act(control)), NotPermittedError) else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def test_who_may_not_set_may_not_adopt(vendors: Gpu) -> None:
    assert not_permitted(lambda control: control.adopt_gpu(ADDRESS))
    assert vendors.control.gpus() == []
    with vendor.adopted(vendors):
        assert not_permitted(lambda control: control.release_gpu(ADDRESS))
        assert vendors.control.gpu(ADDRESS).adopted


def test_a_gpu_with_slices_is_not_released_and_its_tenants_go_with_it(adopted: Gpu) -> None:
    uuid = adopted.slice("blue")
    refused_with(lambda: adopted.control.release_gpu(ADDRESS), BusyError, errno.EBUSY, "slices")
    assert adopted.slice_stats(uuid).scheduled
    adopted.sysfs.remove(uuid)
    adopted.control.release_gpu(ADDRESS)
    assert adopted.control.tenants() == []
    adopted.control.adopt_gpu(ADDRESS)
    assert adopted.control.tenants() == []


def test_a_gpu_that_our_driver_has_is_not_released(gpu: Gpu) -> None:
    refused_with(lambda: gpu.control.release_gpu(ADDRESS), UnknownGpuError, errno.ENODEV, "no such adopted GPU")
    assert gpu.control.gpu(ADDRESS).name == ADDRESS


def test_it_is_told_when_a_gpu_is_adopted_and_released(vendors: Gpu) -> None:
    with Watch(vendors.control) as watch:
        seen = iter(watch)
        next(seen)
        vendors.control.adopt_gpu(ADDRESS)
        vendors.control.release_gpu(ADDRESS)
        told = [event for event in islice(seen, 2) if isinstance(event, Event)]
    assert [(event.kind, event.gpu) for event in told] == [("created", ADDRESS), ("removed", ADDRESS)]
