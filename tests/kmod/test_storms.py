# SPDX-License-Identifier: Apache-2.0
"""Operators that do everything at once: nobody waits for ever, nothing leaks, and afterwards everything works."""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import ADDRESS, Gpu, load_module, poll, unload_module
from tests.rig.kernel import PATIENCE
from tests.rig.storm import operators
from vgpumgr.errors import DumpInterruptedError, NoCapacityError, NotFoundError

pytestmark = pytest.mark.emulated

LOAD = ["saturate", "--op", "mix", "--seconds", "600"]
EXIT_DEVICE = 3  # kmod/guest/tool/exit.h


def ended(thread: threading.Thread, timeout_s: float = 60) -> bool:
    thread.join(timeout=timeout_s)
    return not thread.is_alive()


def nothing_left(gpu: Gpu) -> bool:
    found = gpu.control.gpu(ADDRESS)
    references = int(Path("/sys/module/vgpumgr/refcnt").read_text())
    return (found.slices, found.memory_reserved_bytes, references) == (0, 0, 0)


def idle_or_gone(gpu: Gpu, uuid: str) -> bool:
    with suppress(NotFoundError):
        return gpu.slice_stats(uuid).queued == 0
    return True


def works(gpu: Gpu) -> bool:
    gpu.tenant("after", weight=100, timeslice_us=1000)
    return client(gpu.slice("after"), "verify").status == 0


def test_unloading_under_load_is_refused_until_the_last_user_is_gone(gpu: Gpu) -> None:
    """Repeated at any moment of its life; the module is unloaded right after the last user."""
    random.seed(1)
    for _ in range(2):
        gpu.tenant("blue", weight=100, timeslice_us=1000)
        uuid = gpu.slice("blue")
        user = Client(["--json", uuid, *LOAD])
        gpu.wait_queued(uuid)
        for _ in range(3):
            with pytest.raises(subprocess.CalledProcessError) as refused:
                unload_module()
            assert "in use" in refused.value.stderr or "temporarily unavailable" in refused.value.stderr
            time.sleep(random.random() / 20)
        user.kill()
        gpu.clear()
        gpu.sysfs.unbind(ADDRESS)
        gpu.control.close()
        unload_module()
        load_module()
        gpu.sysfs.bind(ADDRESS)
        gpu.control.__init__()  # type: ignore[misc]  # the family has a new number
    assert works(gpu)


def test_a_killed_client_in_the_middle_of_dma_leaves_nothing(gpu: Gpu) -> None:
    """The slice is removed while its memory is being unmapped, is rewritten, or does not answer."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    random.seed(2)
    for command in ("unmap-race", "toctou", "freeze", "fuzz") * 2:
        victim = Client(["--json", uuid, command, "--seconds", "60"])
        poll(lambda: gpu.slice_stats(uuid).open)
        time.sleep(random.random() / 3)
        victim.process.send_signal(signal.SIGKILL)
        victim.process.wait()
        poll(lambda: not gpu.slice_stats(uuid).open)
    stats = gpu.slice_stats(uuid)
    assert (stats.queued, stats.error) == (0, 0)
    assert client(uuid, "verify").status == 0


@pytest.mark.parametrize("leave", [signal.SIGKILL, signal.SIGTERM])
def test_a_slice_removed_under_its_user_goes_when_the_user_goes(gpu: Gpu, leave: signal.Signals) -> None:
    """The user ignores the request to let go; however it ends, `remove` returns and everything is free."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    for _ in range(2):
        uuid = gpu.slice("blue")
        user = Client(["--json", uuid, *LOAD])
        gpu.wait_queued(uuid)
        remover = threading.Thread(target=gpu.sysfs.remove, args=(uuid,))
        remover.start()
        poll(lambda uuid=uuid: idle_or_gone(gpu, uuid))  # type: ignore[misc]
        user.process.send_signal(leave)
        user.kill()
        assert ended(remover)
    poll(lambda: nothing_left(gpu))
    assert works(gpu)


def storm(gpu: Gpu, seconds: float, meanwhile: Callable[[], None]) -> Counter[str]:
    """Create and remove the same slices in four processes; returns the answers they got."""
    with operators(gpu, 4, seconds=seconds) as seen:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            meanwhile()
    return seen


def look_around(gpu: Gpu) -> None:
    """Read everything, and give existing slices to a tenant. Lists may never be complete while slices come and go."""
    with suppress(DumpInterruptedError):
        for found in gpu.control.slices():
            with suppress(NotFoundError):
                gpu.control.set_slice(found.uuid, tenant="blue", weight=3)


def create_and_remove(gpu: Gpu, seconds: float) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    check(gpu, storm(gpu, seconds, lambda: look_around(gpu)))


def check(gpu: Gpu, seen: Counter[str]) -> None:
    assert not [what for what in seen if what.startswith("unknown")], seen
    assert min(seen["created"], seen["removed"], seen["refused"]) > 0
    poll(lambda: nothing_left(gpu))
    assert works(gpu)


def test_slices_created_and_removed_by_four_processes_at_once(gpu: Gpu) -> None:
    create_and_remove(gpu, 2 * PATIENCE)


@pytest.mark.long
def test_slices_created_and_removed_by_four_processes_for_long(gpu: Gpu, fuzz_s: float) -> None:
    create_and_remove(gpu, fuzz_s / 10)


def unbind_and_bind(gpu: Gpu) -> None:
    """Unbind the function under a working user, if there was a place for one; that user is told that the function is
    gone."""
    user = None
    with suppress(NoCapacityError):
        gpu.tenant("blue", weight=100, timeslice_us=1000)
        uuid = gpu.slice("blue")
        user = Client(["--json", uuid, *LOAD])
        gpu.wait_queued(uuid)
    gpu.sysfs.unbind(ADDRESS)
    if user:
        user.wait(expected=(EXIT_DEVICE,), timeout_s=60)
    gpu.sysfs.bind(ADDRESS)


def test_slices_created_and_removed_while_their_function_is_unbound_and_bound(gpu: Gpu) -> None:
    check(gpu, storm(gpu, 2 * PATIENCE, lambda: unbind_and_bind(gpu)))


def test_a_device_file_that_outlives_its_path_does_no_harm(gpu: Gpu) -> None:
    """Attributes held open over the removal of their slice return ENODEV and do not read freed memory."""
    uuid = gpu.slice()
    folder = Path(f"/sys/bus/mdev/devices/{uuid}")
    held = [os.open(folder / name, os.O_RDONLY) for name in ("state", "tenant", "weight", "sched_config", "permit")]
    try:
        gpu.sysfs.remove(uuid)
        for number in held:
            with pytest.raises(OSError, match="No such device"):
                os.pread(number, 100, 0)
    finally:
        for number in held:
            os.close(number)
    assert works(gpu)
