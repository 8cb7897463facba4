# SPDX-License-Identifier: Apache-2.0
"""Operators that create and remove the same few slices at once, and guests that repeat one operation as fast as they
can."""

import errno
import multiprocessing
import multiprocessing.sharedctypes
import os
import random
import time
import uuid as uuids
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.kernel import PATIENCE
from tests.rig.migration import RUNNING, RUNNING_P2P, set_state
from tests.rig.ring import (
    DOORBELL,
    ENABLED,
    ERROR,
    REG_COMPLETED,
    REG_CONTROL,
    REG_STATUS,
    Guest,
    delay,
    enable_unused,
)
from tests.rig.vfio import BAR0, CONFIG, Device, opened
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import NotFoundError, RefusedError

# The allowed answers when several processes create and remove the same few UUIDs.
OF_CREATE = {errno.EEXIST, errno.ENOSPC, errno.ENODEV, errno.EAGAIN, errno.ENOENT}
OF_REMOVE = {errno.ENODEV, errno.EAGAIN, errno.ENOENT, errno.EBUSY}

CONTROL_RESET = 2
DEVICE_CONTROL, FUNCTION_LEVEL_RESET = 0x58, 0x8000
REGISTERS_BYTES = 0x70
INFLIGHT_ITEMS = 512  # kmod/vgpu.h


def reset(device: Device) -> None:
    device.set_register(REG_CONTROL, CONTROL_RESET)


def enable(device: Device) -> None:
    reset(device)
    enable_unused(device)


def ring_in_vain(device: Device) -> None:
    """Enable the slice again whenever the operation has stopped it: doorbells of a stopped slice are only counted."""
    if device.register(REG_STATUS) & (ENABLED | ERROR) != ENABLED:
        enable(device)
    device.set_register(DOORBELL, 0)


def pause(device: Device) -> None:
    for state in (RUNNING_P2P, RUNNING):
        set_state(device, state)


@dataclass(frozen=True)
class Storm:
    """`act`: the operation that is repeated; `tokens`: the slice pays at least that many for each."""

    act: Callable[[Device], object]
    tokens: int


# Operations that a guest, or its VMM, can repeat without any work for the engine.
OF_GUESTS = {
    "resets": Storm(reset, 1),
    "function-resets": Storm(
        lambda device: device.write(CONFIG, DEVICE_CONTROL, FUNCTION_LEVEL_RESET.to_bytes(2, "little")), 1
    ),
    "vmm-resets": Storm(Device.reset, 1),
    "vmm-pauses": Storm(pause, 1),
    "empty-doorbells": Storm(ring_in_vain, 1),
    "enables": Storm(enable, 1 + 10),
    "reads-of-registers": Storm(lambda device: device.read(BAR0, 0, REGISTERS_BYTES), 0),
}


def churn(seed: int, names: list[str], seconds: float, answers: "multiprocessing.Queue[Counter[str]]") -> None:
    """Create and remove the same slices as the other processes, for `seconds`."""
    chance = random.Random(seed)
    host = Sysfs()
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = chance.choice(names)
        create = chance.random() < 0.6
        try:
            if create:
                host.create(ADDRESS, chance.choice(["vgpumgr-mem16m", "vgpumgr-mem256m"]), name)
            else:
                host.remove(name)
            seen["created" if create else "removed"] += 1
        except RefusedError as refused:
            known = refused.errno in (OF_CREATE if create else OF_REMOVE)
            seen["refused" if known else f"unknown {refused.errno}"] += 1
    answers.put(seen)


def remove_all(gpu: Gpu) -> None:
    """Remove all slices, including those that lost their `remove` file. A removal that comes before a creation has
    ended deletes that file, and then the mdev core refuses the removal (EAGAIN). Such a slice goes away with its GPU.
    """
    for found in gpu.control.slices():
        with suppress(NotFoundError):
            gpu.sysfs.remove(found.uuid)
    for found in gpu.control.slices():
        assert not Path(f"/sys/bus/mdev/devices/{found.uuid}/remove").exists()
    gpu.sysfs.unbind(ADDRESS)
    gpu.sysfs.bind(ADDRESS)


@contextmanager
def operators(gpu: Gpu, count: int, *, seconds: float, idle: bool = False) -> Iterator[Counter[str]]:
    """Run that many processes. The counter has the answers they got afterwards, and no slice is left.

    `idle`: the processes get the processor only when nobody else wants it.
    """
    names = [str(uuids.uuid4()) for _ in range(8)]
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    processes = [fork.Process(target=churn, args=(seed, names, seconds, answers)) for seed in range(count)]
    for process in processes:
        process.start()
        if idle:
            os.sched_setscheduler(process.pid or 0, os.SCHED_IDLE, os.sched_param(0))
    seen: Counter[str] = Counter()
    try:
        yield seen
    finally:
        for _ in processes:
            seen.update(answers.get(timeout=(seconds + 60) * PATIENCE))
        for process in processes:
            process.join(timeout=60 * PATIENCE)
        remove_all(gpu)
    assert [process.exitcode for process in processes] == [0] * count


def repeat(uuid: str, act: Callable[[Device], object], done: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    with opened(uuid) as device:
        while True:
            act(device)
            done.value += 1


def submit_bursts(uuid: str, item: bytes, done: "multiprocessing.sharedctypes.Synchronized[int]") -> None:
    """Submit an item of 400 us again and again, with as many other items as a slice may have ready. `done`: the items
    completed.

    The ring is written once: a program that does its own work keeps a processor from others for longer than it may.
    """
    burst = [delay(400), *[item] * (INFLIGHT_ITEMS - 1)]
    work = Guest(entries=2 * INFLIGHT_ITEMS)
    with opened(uuid) as device:
        work.attach(device)
        work.enable(device)
        work.submit(device, *burst, *burst)
        while True:
            time.sleep(0.001)
            done.value = device.register(REG_COMPLETED)
            if work.tail - done.value <= INFLIGHT_ITEMS:
                work.tail += INFLIGHT_ITEMS
                device.set_register(DOORBELL, work.tail)


@contextmanager
def bursts(uuid: str, item: bytes) -> Iterator[Callable[[], int]]:
    """Submit items that end at once; yields the number completed so far."""
    with _apart(submit_bursts, uuid, item) as done:
        yield done


@contextmanager
def guest(uuid: str, kind: str) -> Iterator[Callable[[], int]]:
    """Act as one guest; yields how often it has done the operation of `OF_GUESTS`."""
    with _apart(repeat, uuid, OF_GUESTS[kind].act) as done:
        yield done


@contextmanager
def _apart(storm: Callable[..., None], *args: object) -> Iterator[Callable[[], int]]:
    """Run `storm` in a process that gets the processor only when nobody else wants it; its last argument counts the
    operations."""
    fork = multiprocessing.get_context("fork")
    done = fork.Value("q", 0)
    process = fork.Process(target=storm, args=(*args, done))
    process.start()
    os.sched_setscheduler(process.pid or 0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield lambda: done.value
    finally:
        process.kill()
        process.join()
