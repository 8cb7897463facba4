# SPDX-License-Identifier: Apache-2.0
"""A hostile guest's input: its own slice stops, and its neighbour does not notice."""

import fcntl
import os
import re
import struct
import time

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import Gpu, poll
from tests.rig.kernel import kernel_log
from tests.rig.ring import REG_CONTROL, REG_ENTRIES, REG_ERROR
from tests.rig.vfio import ACTION_TRIGGER, DATA_EVENTFD, MSIX, SET_IRQS, Device, dma_timeout, opened

VGPU_ERROR_RING, VGPU_ERROR_DMA = 1, 4  # kmod/uapi/vgpu_device.h
ENABLE, RESET = 1, 2
NO_REGION = 15 << 40


@pytest.mark.usefixtures("quiet_log")
def test_the_log_names_what_stopped_a_slice_and_cannot_be_flooded(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    begin = time.monotonic()
    reports = client(uuid, "hostile", "all").reports
    windows = 1 + (time.monotonic() - begin) // 5
    made = [
        # For invalid rings, the first word of the case is the register.
        (name, report["case"].split("-")[0] if name == "ring" else "", str(report["error_index"]))
        for report in reports
        if "case" in report and (name := report["error_name"])
    ]
    told = re.findall(rf"{uuid}: stopped: (\w+)(?: \((\w+)\))?, item (\d+)\n", kernel_log())
    assert told[:10] == made[:10]
    assert len(told) <= 10 * windows


def stop(device: Device) -> None:
    """Stop the slice by an invalid ring, which is the guest's mistake."""
    device.set_register(REG_CONTROL, RESET)
    device.set_register(REG_ENTRIES, 7)
    device.set_register(REG_CONTROL, ENABLE)
    assert device.register(REG_ERROR) == VGPU_ERROR_RING


def ask_in_vain(device: Device) -> None:
    """Stop the slice by a mistake of the VMM."""
    with pytest.raises(OSError, match="Invalid argument"):
        os.pread(device.fd, 4, NO_REGION)


def test_who_floods_the_log_silences_nobody_else(gpu: Gpu) -> None:
    """This holds for guest and VMM, and every line in the log names a slice."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    loud, calm = gpu.slice("blue"), gpu.slice("blue")
    before = kernel_log()
    with opened(loud) as flooding, opened(calm) as device:
        flooding.master()
        device.master()
        for mistake, line in (
            (stop, "stopped: ring (entries), item 0"),
            (ask_in_vain, "access refused for offset: -EINVAL"),
        ):
            for _ in range(50):
                mistake(flooding)
            mistake(device)
            assert f"{calm}: {line}\n" in kernel_log().removeprefix(before)
        time.sleep(6)  # otherwise the kernel would report how many it has left out
        stop(flooding)
        ask_in_vain(flooding)
    said = kernel_log().removeprefix(before)
    assert 10 < said.count(f"{loud}: ") < 50
    assert "suppressed" not in said


def test_however_many_flood_the_log_it_takes_a_hundred_lines(gpu: Gpu) -> None:
    """The limit is per five seconds for all slices together; the log then says that there were more."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    before, begin = kernel_log(), time.monotonic()
    for uuid in [gpu.slice("blue") for _ in range(40)]:
        with opened(uuid) as device:
            for _ in range(12):
                ask_in_vain(device)
    windows = 2 + (time.monotonic() - begin) // 5
    assert kernel_log().removeprefix(before).count("access refused for offset") <= 100 * windows
    time.sleep(6)
    with opened(uuid) as device:
        ask_in_vain(device)
    assert "callbacks suppressed" in kernel_log().removeprefix(before)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ((19, DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 0), "argsz"),
        ((20, DATA_EVENTFD | ACTION_TRIGGER, 99, 0, 1), "index"),
        ((24, DATA_EVENTFD | ACTION_TRIGGER, MSIX, 9, 1), "start"),
        ((24, DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 9), "count"),
        ((24, ACTION_TRIGGER, MSIX, 0, 1), "flags"),
        ((24, DATA_EVENTFD | ACTION_TRIGGER | 1 << 31, MSIX, 0, 1), "flags"),
        ((23, DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 1), "argsz"),
        ((24, DATA_EVENTFD | ACTION_TRIGGER, MSIX, 0, 2), "argsz"),
    ],
)
def test_the_log_names_what_is_wrong_with_a_request_for_interrupts(
    gpu: Gpu, header: tuple[int, int, int, int, int], field: str
) -> None:
    uuid = gpu.slice()
    with opened(uuid) as device, pytest.raises(OSError, match="Invalid argument"):
        fcntl.ioctl(device.fd, SET_IRQS, struct.pack("<IIIIIi", *header, -1))
    assert re.findall(rf"{uuid}: (\w+ refused .*)\n", kernel_log()) == [f"SET_IRQS refused for {field}: -EINVAL"]


def test_every_malformed_thing_stops_that_slice_alone(gpu: Gpu) -> None:
    """All hostile cases against one slice, each with its own sticky error and a reset, while another slice works.

    tests/time/test_isolation.py measures in virtual time that the other slice does not wait for it.
    """
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    with gpu.loaded({good: {"op": "delay", "delay_us": 200}}) as outcomes:
        hostile = client(bad, "hostile", "all")
        assert gpu.slice_stats(good).error == 0

    assert all(report["ok"] for report in hostile.reports if "case" in report)
    report = outcomes[0].report("name", good)
    assert (report["error"], report["mismatches"]) == (0, 0)
    assert gpu.slice_stats(bad).errors >= sum("case" in report for report in hostile.reports) > 30


@pytest.mark.parametrize("command", ["probe", "unmap-race", "toctou", "verify"])
def test_the_client_finds_nothing_wrong(gpu: Gpu, command: str) -> None:
    """VFIO's answers and refusals; memory that is unmapped or changes under the device; every operation's result."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    assert client(gpu.slice("blue"), command).status == 0


@pytest.mark.parametrize("options", [[], ["--fault-first"], ["--leave"], ["--leave", "--fault-first"]])
def test_memory_that_never_answers_does_not_keep_a_process_from_ending(gpu: Gpu, options: list[str]) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    client(uuid, "freeze", "--seconds", "2", *options, timeout_s=60)
    assert client(uuid, "verify").status == 0


def test_device_memory_is_zeroed_between_users(gpu: Gpu) -> None:
    """Every user finds zeros and leaves a pattern: in the same slice, and in a new one that may get the same memory."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    for uuid in (gpu.slice("blue"), gpu.slice("blue")):
        for _ in range(3):
            report = client(uuid, "residue").report("record", "residue")
            assert (report["dirty"], report["notices"]) == (0, True)
            assert report["bytes"] == 16 << 20


def test_memory_that_does_not_answer_in_time_is_an_error_of_its_slice(gpu: Gpu) -> None:
    """Nothing waits for ever: beyond `dma_timeout_ms` the slice stops, and works again after a reset."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with dma_timeout(500):
        frozen = Client([uuid, "freeze", "--seconds", "4"])
        poll(lambda: gpu.slice_stats(uuid).error != 0)
        assert gpu.slice_stats(uuid).error == VGPU_ERROR_DMA
        frozen.wait(expected=(1, 5))
    assert client(uuid, "verify").status == 0
