# SPDX-License-Identifier: Apache-2.0
"""Requests of operators and executors without memory."""

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.rig.failing import WITHOUT_MEMORY, each_failure, failures_possible, text_of, text_of_function
from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.leasing import bound
from tests.rig.settings import settings
from vgpumgr.control.sysfs import write_file

pytestmark = pytest.mark.usefixtures("reached")

UUID = "00000000-0000-4000-8000-000000000001"
FUNCTION = Path("/sys/bus/pci/devices") / ADDRESS
# The resource tree reports every failure for a region with the same errno, and so does the code that assigns
# interrupts.
ENGINE_SAYS = WITHOUT_MEMORY | {errno.EBUSY, errno.ENOSPC}
RUNS = Path("/sys/kernel/debug/vgpumgr/runs")


@pytest.fixture
def seen(gpu: Gpu) -> Callable[[], object]:
    return lambda: settings(gpu.control, gpu.sysfs)


def nothing() -> None:
    """The undo step of an action that changes nothing."""


def test_configuring_a_tenant(gpu: Gpu, seen: Callable[[], object]) -> None:
    count = each_failure(
        lambda: gpu.tenant("red", weight=100, timeslice_us=1000),
        undo=lambda: gpu.control.delete_tenant(ADDRESS, "red"),
        same=seen,
    )
    assert count > 2


def test_an_attribute_of_a_slice(gpu: Gpu, seen: Callable[[], object]) -> None:
    """The request creates the tenant that it names."""
    uuid = gpu.slice()
    count = each_failure(
        lambda: gpu.sysfs.write(uuid, "sched_config", "tenant=red weight=3"),
        undo=lambda: gpu.control.set_slice(uuid, tenant="", weight=1),
        same=seen,
    )
    assert count > 1


def test_assigning_a_slice(gpu: Gpu, seen: Callable[[], object]) -> None:
    """A slice can also move to a tenant that does not exist yet."""
    uuid = gpu.slice()
    count = each_failure(
        lambda: gpu.control.set_slice(uuid, tenant="red", weight=3),
        undo=lambda: gpu.control.set_slice(uuid, tenant="", weight=1),
        same=seen,
    )
    assert count > 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda gpu: gpu.control.gpu(ADDRESS),
        lambda gpu: gpu.control.tenant(ADDRESS, "blue"),
        lambda gpu: gpu.control.slice(UUID),
        lambda _: RUNS.read_text(),
    ],
    ids=["gpu", "tenant", "slice", "runs"],
)
def test_looking(gpu: Gpu, seen: Callable[[], object], ask: Callable[[Gpu], Any]) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", UUID)
    assert each_failure(lambda: ask(gpu), undo=nothing, same=seen) >= 1


def test_creating_a_slice(gpu: Gpu, seen: Callable[[], object]) -> None:
    """This includes everything that the cores of mediated devices and of VFIO allocate for us.

    The exception is VFIO's groups: their core warns about itself when it drops a half-made group (vfio_group_release).
    """
    with failures_possible(text_of_function("mdev_device_create"), but=text_of_function("vfio_create_group")):
        count = each_failure(
            lambda: gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", UUID),
            undo=lambda: gpu.sysfs.remove(UUID),
            same=lambda: (seen(), gpu.sysfs.slices(ADDRESS)),
        )
    assert count > 20


def test_an_executor_of_a_slice_that_could_not_be_created_is_told(gpu: Gpu, seen: Callable[[], object]) -> None:
    """The kernel may fail to allocate the slice after an executor has found it.

    A later failure is another case: the slice is then removed like any other.
    """
    told: list[bool] = []
    created: list[None] = []
    over = threading.Event()

    def hurry() -> None:
        while not over.is_set():
            with suppress(OSError), bound(UUID) as executor:
                told.append(executor.ended())

    def create() -> None:
        gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", UUID)
        created.append(None)

    def of_slices_not_created() -> int:
        """At least that many: a slice that is removed releases one executor and accepts no other."""
        return len(told) - len(created)

    with (
        gpu.leasing(),
        ThreadPoolExecutor(1) as other,
        failures_possible(text_of_function("vgpu_mdev_probe"), but=text_of_function("vfio_create_group")),
    ):
        hurrying = other.submit(hurry)
        try:
            for _ in range(10):
                each_failure(create, undo=lambda: gpu.sysfs.remove(UUID), same=seen)
                if of_slices_not_created() > 0 or not all(told):
                    break
        finally:
            over.set()
        hurrying.result()
    assert all(told)
    assert of_slices_not_created() > 0


def held() -> tuple[str, bool, bool]:
    """What a driver holds of the function: whether it is enabled, its registers, its interrupt."""
    return (
        (FUNCTION / "enable").read_text(),
        ": vgpumgr\n" in Path("/proc/iomem").read_text(),
        "vgpumgr-edu" in Path("/proc/interrupts").read_text(),
    )


@pytest.fixture
def enabled(gpu: Gpu) -> Iterator[None]:
    """Another user has enabled the function already, so that the kernel does not ask ACPI for its interrupt.

    ACPI's interpreter uses memory that it has freed after an allocation failed.
    """
    with gpu.unbound():
        write_file(FUNCTION / "enable", "1\n")
    yield
    with gpu.unbound():
        write_file(FUNCTION / "enable", "0\n")


@pytest.mark.usefixtures("enabled")
@pytest.mark.parametrize(("before", "after"), [("soft", "edu"), ("edu", "soft")])
def test_changing_the_engine(gpu: Gpu, seen: Callable[[], object], before: str, after: str) -> None:
    """The exception is an interrupt's files in /proc: the kernel warns about itself when it removes a file that it
    could not create."""
    gpu.sysfs.write_gpu(ADDRESS, "engine", before)
    try:
        with failures_possible(text_of("vgpumgr"), but=text_of_function("register_irq_proc")):
            count = each_failure(
                lambda: gpu.sysfs.write_gpu(ADDRESS, "engine", after),
                undo=lambda: gpu.sysfs.write_gpu(ADDRESS, "engine", before),
                same=lambda: (seen(), held()),
                says=ENGINE_SAYS,
            )
    finally:
        gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")
    assert count >= (20 if after == "edu" else 1)
