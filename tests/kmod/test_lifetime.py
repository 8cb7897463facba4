# SPDX-License-Identifier: Apache-2.0
"""Devices are created, removed and broken at any moment; nothing leaks and nobody waits for the wrong event."""

import signal
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import ADDRESS, Gpu, load_module, poll, unload_module
from tests.rig.ring import REG_RUN_NS
from tests.rig.vfio import opened
from vgpumgr.errors import BusyError, NoCapacityError, StaleGenerationError

LOAD = ["saturate", "--op", "delay", "--delay-us", "200"]


def module_references() -> int:
    return int(Path("/sys/module/vgpumgr/refcnt").read_text())


def workers() -> list[str]:
    """Worker threads of open slices; the engine's thread has a slash in its name."""
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            names.append(path.read_text().strip())
    return [name for name in names if name.startswith("vgpu-") and name not in ("vgpu-reaper", "vgpu-client")]


def test_a_hundred_slices_come_and_go_without_a_trace(gpu: Gpu) -> None:
    """Every fifth slice also works, so that device memory, ring, worker and staging are made and freed too."""
    before = gpu.control.gpu(ADDRESS)
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    for number in range(100):
        uuid = gpu.slice("blue")
        if number % 5 == 0:
            client(uuid, "saturate", "--op", "mix", "--items", "20", "--queued-min", "0")
        gpu.sysfs.remove(uuid)
    after = gpu.control.gpu(ADDRESS)

    assert after.memory_reserved_bytes == before.memory_reserved_bytes == 0
    assert after.slices == 0
    assert gpu.stats("blue").slices == 0
    assert gpu.stats("blue").run_ns > 0
    assert module_references() == 0
    assert workers() == []
    poll(lambda: "vgpu_memory_create" not in Path("/proc/vmallocinfo").read_text())


def test_the_leak_check_sees_memory_and_worker_of_an_open_slice(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with gpu.loaded({uuid: {"op": "delay", "delay_us": 200}}):
        assert len(workers()) == 1
        assert "vgpu_memory_create" in Path("/proc/vmallocinfo").read_text()


@pytest.mark.parametrize("configured", [True, False])
def test_what_a_slice_used_is_not_told_of_the_next_tenant(gpu: Gpu, configured: bool) -> None:
    """The guest's clock of engine time does not go back once that tenant is configured, either."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    client(uuid, "saturate", "--op", "mix", "--items", "20", "--queued-min", "0")
    used = gpu.stats("blue").run_ns
    assert gpu.slice_stats(uuid).run_ns == used > 0
    if configured:
        gpu.tenant("green", weight=100, timeslice_us=1000)
    gpu.control.set_slice(uuid, tenant="green")
    assert gpu.slice_stats(uuid).run_ns == 0
    with opened(uuid) as device:
        assert device.register(REG_RUN_NS) == 0
        gpu.tenant("green", weight=50, timeslice_us=1000)
        assert device.register(REG_RUN_NS) == 0
    assert (gpu.stats("blue").run_ns, gpu.stats("green").run_ns) == (used, 0)


def test_device_memory_is_a_quota(gpu: Gpu) -> None:
    """There are as many slices as fit in memory; the next one is refused and leaves nothing behind."""
    gpu.sysfs.write_gpu(ADDRESS, "memory_total", 64 << 20)
    try:
        made = [gpu.slice() for _ in range(4)]
        available = {kind.id: kind.available for kind in gpu.sysfs.types(ADDRESS)}
        assert available["vgpumgr-mem16m"] == 0
        with pytest.raises(NoCapacityError):
            gpu.slice()
        assert len(gpu.slices()) == len(made)
        with pytest.raises(BusyError):
            gpu.sysfs.write_gpu(ADDRESS, "memory_total", 16 << 20)
    finally:
        gpu.clear()
        gpu.sysfs.write_gpu(ADDRESS, "memory_total", 1 << 30)


def test_more_slices_than_a_number_can_tell_are_available(gpu: Gpu) -> None:
    """The lower half of the number alone would say none."""
    gpu.sysfs.write_gpu(ADDRESS, "memory_total", 1 << 63)
    try:
        available = {kind.id: kind.available for kind in gpu.sysfs.types(ADDRESS)}
        assert available["vgpumgr-mem16m"] == available["vgpumgr-mem64m"] == (1 << 32) - 1
    finally:
        gpu.sysfs.write_gpu(ADDRESS, "memory_total", 1 << 30)


def test_unloading_is_refused_while_a_slice_is_open(gpu: Gpu) -> None:
    uuid = gpu.slice()
    holder = Client([uuid, "hold"])
    poll(lambda: gpu.slice_stats(uuid).open)
    with pytest.raises(subprocess.CalledProcessError, match="rmmod"):
        unload_module()
    assert module_references() > 0
    holder.kill()
    poll(lambda: module_references() == 0)


def test_no_number_is_given_twice_not_after_binding_or_loading_again_either(gpu: Gpu) -> None:
    """An update that was based on an earlier object changes nothing of the new one, and counters of the two are
    distinct."""
    lives: list[tuple[int, int, int]] = []
    for again in (nullcontext, gpu.unbound, gpu.unloaded):
        gpu.clear()
        with again():
            pass
        gpu.tenant("blue", weight=100, timeslice_us=1000)
        of_gpu, of_tenant = gpu.control.gpu(ADDRESS).generation, gpu.stats("blue").generation
        for before_gpu, before_tenant, _ in lives:
            with pytest.raises(StaleGenerationError):
                gpu.control.set_gpu(ADDRESS, max_chunk_us=300, if_generation=before_gpu)
            with pytest.raises(StaleGenerationError):
                gpu.tenant("blue", weight=5, if_generation=before_tenant)
        lives.append((of_gpu, of_tenant, gpu.stats("blue").id))
    for numbers in zip(*lives, strict=True):
        assert 0 < numbers[0] < numbers[1] < numbers[2]


def test_a_killed_client_frees_everything_and_the_slice_works_again(gpu: Gpu) -> None:
    """SIGKILL in the middle of work, twenty times."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    for _ in range(20):
        victim = Client(["--json", uuid, *LOAD, "--seconds", "60"])
        gpu.wait_queued(uuid)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        poll(lambda: not gpu.slice_stats(uuid).open)
    stats = gpu.slice_stats(uuid)

    assert (stats.queued, stats.error) == (0, 0)
    assert stats.dropped > 0
    assert client(uuid, "verify").status == 0


def test_the_module_unloads_and_loads_again(gpu: Gpu) -> None:
    gpu.slice()
    gpu.clear()
    with gpu.unloaded():
        for _ in range(5):
            load_module()
            unload_module()
    assert gpu.slices() == {}
