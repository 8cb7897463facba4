# SPDX-License-Identifier: Apache-2.0
"""An adoption ends when its driver releases the function, which waits for no VM; when the function is removed, which
waits for VMs; or when the module is unloaded.

Operators may also do two of these at once.
"""

import errno
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.kmod.test_leases import Slice, served
from tests.kmod.test_removal import ended, pulled_out, started
from tests.rig import vendor
from tests.rig.gpu import ADDRESS, Gpu, load_module, poll, unload_module
from tests.rig.kernel import PATIENCE
from tests.rig.leasing import Child, Lease
from tests.rig.vfio import opened
from vgpumgr.control.sysfs import write_file
from vgpumgr.errors import AlreadyExistsError, BusyError, RefusedError, UnknownGpuError

FUNCTION = Path("/sys/bus/pci/devices") / ADDRESS
RESCAN = Path("/sys/bus/pci/rescan")
UNBIND = Path("/sys/bus/pci/drivers") / vendor.DRIVER / "unbind"
BIND = UNBIND.parent / "bind"
POLLHUP = 0x10


@pytest.fixture
def vendors(gpu: Gpu) -> Iterator[Gpu]:
    with vendor.has_function(gpu.sysfs):
        yield gpu


@pytest.fixture
def adopted(vendors: Gpu) -> Iterator[Gpu]:
    with vendor.adopted(vendors) as gpu:
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        yield gpu


@pytest.fixture
def neighbour(second_gpu: Gpu) -> Iterator[tuple[Gpu, Child]]:
    """A child with a lease of another GPU."""
    with second_gpu.leasing():
        second_gpu.tenant("green", weight=100, timeslice_us=100_000)
        with served(second_gpu.slice("green")) as green:
            worker = green.child()
            worker.start()
            yield second_gpu, worker


def unbind() -> None:
    """Through the driver's own file, which does not change driver_override."""
    write_file(UNBIND, f"{ADDRESS}\n")


def bind() -> None:
    write_file(BIND, f"{ADDRESS}\n")


def gone(gpu: Gpu) -> bool:
    return gpu.control.gpus() == [] and not (FUNCTION / "vgpu").exists()


def adopts_again(gpu: Gpu) -> None:
    gpu.control.adopt_gpu(ADDRESS)
    gpu.tenant("blue", weight=100, timeslice_us=100_000)
    with served(gpu.slice("blue")) as blue:
        assert blue.child().start() == 1
    gpu.clear()


@contextmanager
def at_work(gpu: Gpu) -> Iterator[tuple[Slice, Child]]:
    """An open slice with an executor whose child has the lease."""
    with served(gpu.slice("blue")) as blue:
        worker = blue.child()
        worker.start()
        yield blue, worker


def cut_off(blue: Slice, worker: Child) -> None:
    """VM, executor and child have been notified."""
    assert pulled_out(blue.guest.device)
    assert blue.executor.poll() & POLLHUP
    assert worker.signalled() == -1
    assert worker.lease()[1] is not Lease.LENT


def test_unbinding_ends_it_and_binding_does_not_begin_it_again(adopted: Gpu) -> None:
    unbind()
    poll(lambda: gone(adopted))
    with pytest.raises(RefusedError, match="no driver"):
        adopted.control.adopt_gpu(ADDRESS)
    bind()
    assert adopted.control.gpus() == []
    adopts_again(adopted)


def test_slices_that_nobody_has_open_go_with_it(adopted: Gpu) -> None:
    uuids = [adopted.slice("blue") for _ in range(3)]
    unbind()
    poll(lambda: gone(adopted))
    assert not any(adopted.sysfs.exists(uuid) for uuid in uuids)
    bind()
    adopts_again(adopted)


def test_unbinding_waits_for_no_vm_and_cuts_off_who_computes(adopted: Gpu, neighbour: tuple[Gpu, Child]) -> None:
    """VM, executor and child of the slice keep their files open all the time."""
    other, unharmed = neighbour
    others = [adopted.slice("blue") for _ in range(2)]
    with at_work(adopted) as (blue, worker), opened(others[0]) as first, opened(others[1]) as second:
        unbind()
        cut_off(blue, worker)
        assert pulled_out(first)
        assert pulled_out(second)
        assert adopted.sysfs.driver(ADDRESS) is None
        # until the VM releases it the GPU exists, and accepts nothing
        assert adopted.slice_stats(blue.uuid).open
        with pytest.raises(RefusedError):
            adopted.tenant("red", weight=100, timeslice_us=1000)
        with pytest.raises(UnknownGpuError):
            adopted.control.release_gpu(ADDRESS)
        bind()
        with pytest.raises(BusyError, match="still open"):
            adopted.control.adopt_gpu(ADDRESS)
        assert unharmed.lease() == (1, Lease.LENT)
    poll(lambda: [found.name for found in adopted.control.gpus()] == [other.address])
    adopts_again(adopted)
    assert unharmed.lease() == (1, Lease.LENT)
    assert not other.slice_stats(other.control.slices(other.address)[0].uuid).error


def test_who_computes_is_cut_off_before_the_driver_has_to_let_go(adopted: Gpu) -> None:
    """A vendor's driver may wait for executors: they have been notified by then."""
    vendor.set_option("slow", True)
    with at_work(adopted) as (blue, worker):
        unbinder = started(unbind)
        poll(vendor.is_letting_go)
        cut_off(blue, worker)
        assert unbinder.is_alive()
        vendor.set_option("slow", False)
        ended(unbinder)
    poll(lambda: gone(adopted))


def test_our_driver_does_not_take_a_function_while_a_vm_keeps_a_slice_of_it(adopted: Gpu) -> None:
    with at_work(adopted) as (blue, _):
        with pytest.raises(RefusedError, match="did not accept it"):
            adopted.sysfs.bind(ADDRESS)
        assert adopted.slice_stats(blue.uuid).open
    poll(lambda: gone(adopted))
    adopted.sysfs.bind(ADDRESS)
    assert not adopted.control.gpu(ADDRESS).adopted


def test_the_vendors_module_is_unloaded_without_waiting(adopted: Gpu) -> None:
    with at_work(adopted) as (blue, worker):
        vendor.unload()
        cut_off(blue, worker)
        assert adopted.slice_stats(blue.uuid).open
    poll(lambda: gone(adopted))
    vendor.load()
    adopted.sysfs.bind(ADDRESS, vendor.DRIVER)
    adopts_again(adopted)


@contextmanager
def comes_back(gpu: Gpu) -> Iterator[None]:
    """The function, after it was removed."""
    try:
        yield
    finally:
        write_file(RESCAN, "1\n")
        gpu.sysfs.bind(ADDRESS, vendor.DRIVER)


def remove_function() -> None:
    write_file(FUNCTION / "remove", "1\n")


def test_a_function_that_is_removed_waits_until_vms_let_go(adopted: Gpu) -> None:
    with comes_back(adopted):
        with at_work(adopted) as (blue, worker):
            remover = started(remove_function)
            poll(lambda: pulled_out(blue.guest.device))
            cut_off(blue, worker)
            assert remover.is_alive()
            assert FUNCTION.exists()
            assert adopted.sysfs.exists(blue.uuid) or adopted.slice_stats(blue.uuid).open
        ended(remover)
        assert not FUNCTION.exists()
        assert adopted.control.gpus() == []
    adopts_again(adopted)


def test_a_function_without_open_slices_is_removed_at_once(adopted: Gpu) -> None:
    uuid = adopted.slice("blue")
    with comes_back(adopted):
        remove_function()
        assert not FUNCTION.exists()
        assert not adopted.sysfs.exists(uuid)
        with pytest.raises(UnknownGpuError):
            adopted.control.adopt_gpu(ADDRESS)
    adopts_again(adopted)


def reload(gpu: Gpu) -> None:
    gpu.control.close()
    unload_module()
    load_module()
    gpu.control.__init__()  # type: ignore[misc]  # the family has a new number


def test_our_module_is_unloaded_only_when_no_slice_is_open(adopted: Gpu) -> None:
    """Unloading then releases the adopted function with its slices, and the function's driver notices nothing."""
    uuid = adopted.slice("blue")
    with opened(uuid), pytest.raises(subprocess.CalledProcessError, match="rmmod"):
        unload_module()
    poll(lambda: int(Path("/sys/module/vgpumgr/refcnt").read_text()) == 0)
    reload(adopted)
    assert adopted.sysfs.driver(ADDRESS) == vendor.DRIVER
    assert gone(adopted)
    assert not adopted.sysfs.exists(uuid)
    adopts_again(adopted)


def test_our_module_goes_and_the_function_afterwards(adopted: Gpu) -> None:
    """Its removal calls no driver that is gone."""
    adopted.control.close()
    unload_module()
    with comes_back(adopted):
        remove_function()
    load_module()
    adopted.control.__init__()  # type: ignore[misc]  # the family has a new number
    adopts_again(adopted)


def repeated(act: Callable[[], object], stop: threading.Event, failures: list[BaseException]) -> threading.Thread:
    """Repeat until `stop`; `failures` has the answers that are not allowed."""

    def run() -> None:
        while not stop.is_set():
            try:
                act()
            except RefusedError as refused:
                if refused.errno not in (
                    errno.ENXIO, errno.EAGAIN, errno.EEXIST, errno.EBUSY, errno.ENODEV, errno.ENOENT, errno.ENOSPC,
                ):  # fmt: skip
                    failures.append(refused)
            except OSError as refused:
                if refused.errno not in (errno.ENODEV, errno.EBUSY, errno.EAGAIN, errno.ENOENT):
                    failures.append(refused)

    return started(run)


def test_operators_who_adopt_release_bind_unbind_and_create_at_once(vendors: Gpu) -> None:
    """Nobody waits for ever, every answer is an allowed one, and afterwards everything works."""
    stop, failures = threading.Event(), list[BaseException]()
    control, sysfs = vendors.control, vendors.sysfs
    rounds = 60

    def adopt() -> None:
        with suppress(AlreadyExistsError):
            control.adopt_gpu(ADDRESS)
        sysfs.write_gpu(ADDRESS, "attach", "any")
        control.set_tenant(ADDRESS, "blue", weight=100, timeslice_us=100_000)

    def create() -> None:
        uuid = vendors.slice("blue")
        with suppress(FileNotFoundError), opened(uuid) as device:
            device.register(0)
        sysfs.remove(uuid)

    acts = (adopt, create, lambda: control.release_gpu(ADDRESS), lambda: [sysfs.types(ADDRESS), control.slices()])
    threads = [repeated(act, stop, failures) for act in acts]
    for _ in range(rounds):
        with suppress(OSError):
            unbind()
        bind()
    stop.set()
    for thread in threads:
        thread.join(timeout=30 * PATIENCE)
        assert not thread.is_alive()
    assert not failures
    unbind()
    poll(lambda: gone(vendors))
    bind()
    adopts_again(vendors)
    vendors.control.release_gpu(ADDRESS)


def test_adopting_while_the_function_goes(vendors: Gpu) -> None:
    """An adopted GPU is removed together with its function, and no GPU is left behind."""
    stop, failures = threading.Event(), list[BaseException]()
    thread = repeated(lambda: vendors.control.adopt_gpu(ADDRESS), stop, failures)
    for _ in range(20):
        with comes_back(vendors):
            remove_function()
            assert vendors.control.gpus() == []
    stop.set()
    thread.join(timeout=30 * PATIENCE)
    assert not thread.is_alive()
    assert not failures
    unbind()
    poll(lambda: gone(vendors))
    bind()
    adopts_again(vendors)
    vendors.control.release_gpu(ADDRESS)
