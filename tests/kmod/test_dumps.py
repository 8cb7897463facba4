# SPDX-License-Identifier: Apache-2.0
"""Lists of as many objects as a GPU may have: in few system calls, complete, each object once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.rig.gpu import ADDRESS, Gpu
from vgpumgr.control import wire
from vgpumgr.control.netlink import Control
from vgpumgr.control.protocol import Command, TenantAttribute

MANY = 1024
# The kernel fills at most 32 KiB at a time; a tenant with all its settings takes some 700 bytes.
RECEIVED_MAX = 32


@contextmanager
def counting(control: Control) -> Iterator[list[int]]:
    """Lengths of what the socket receives meanwhile."""
    lengths: list[int] = []
    whole = control._socket

    class Counted:
        def recvmsg(self, size: int) -> Any:
            received = whole.recvmsg(size)
            lengths.append(len(received[0]))
            return received

        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

    control._socket = Counted()  # type: ignore[assignment]
    try:
        yield lengths
    finally:
        control._socket = whole


@pytest.fixture
def tenants(gpu: Gpu) -> list[str]:
    names = [f"tenant-{number:04}" for number in range(MANY)]
    for name in names:
        gpu.tenant(name, weight=100, timeslice_us=1000)
    return names


def test_a_thousand_tenants_are_listed_in_few_calls(gpu: Gpu, tenants: list[str]) -> None:
    with counting(gpu.control) as lengths:
        found = [tenant.name for tenant in gpu.control.tenants(ADDRESS)]
    assert found == tenants
    assert len(lengths) <= RECEIVED_MAX, lengths
    assert max(lengths) > 16 << 10, "the kernel did not use the room it was given"


def test_a_list_of_many_parts_is_whole_while_tenants_come_and_go(gpu: Gpu, tenants: list[str]) -> None:
    """Each part begins after the last tenant of the part before, which may have been removed by then."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            with Control() as control:
                for number in range(MANY):
                    if stop.is_set():
                        return
                    # Every other tenant is removed, so that any of them may be the last of a part.
                    if number % 2:
                        control.delete_tenant(ADDRESS, tenants[number])
                    control.set_tenant(ADDRESS, f"new-{number}", weight=1, timeslice_us=1000)
        except BaseException as error:  # the main thread asserts that there is no error
            failures.append(error)

    churning = threading.Thread(target=churn)
    churning.start()
    interrupted = 0
    try:
        for _ in range(10):
            answers, changed = gpu.control._exchange(Command.TENANT_GET, wire.DUMP, b"")
            interrupted += changed
            names = [
                str(wire.decode_value("string", dict(wire.decode_attributes(found))[TenantAttribute.TENANT]))
                for found in answers
            ]
            assert len(names) == len(set(names))
            assert set(tenants[::2]) <= set(names)
    finally:
        stop.set()
        churning.join(timeout=60)
    assert not failures
    assert interrupted, "nothing came or went during any list"


@pytest.mark.long
def test_a_thousand_slices_are_listed_in_few_calls(gpu: Gpu) -> None:
    memory_total = gpu.sysfs.read_gpu(ADDRESS, "memory_total")
    gpu.sysfs.write_gpu(ADDRESS, "memory_total", MANY * (16 << 20))
    try:
        made = sorted(gpu.slice() for _ in range(MANY))
        with counting(gpu.control) as lengths:
            found = [device.uuid for device in gpu.control.slices(ADDRESS)]
        assert sorted(found) == made
        assert len(lengths) <= RECEIVED_MAX, lengths
    finally:
        gpu.clear()
        gpu.sysfs.write_gpu(ADDRESS, "memory_total", memory_total)
