# SPDX-License-Identifier: Apache-2.0
"""Operators and users who end things at any moment: nobody waits for ever, and afterwards everything works."""

import random
import signal
import subprocess
import time

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import ADDRESS, Gpu, load_module, poll, unload_module

LOAD = ["saturate", "--op", "mix", "--seconds", "600"]


def works(gpu: Gpu) -> bool:
    gpu.tenant("after", weight=100, timeslice_us=1000)
    return client(gpu.slice("after"), "verify").status == 0


def test_unloading_under_load_is_refused_until_the_last_user_is_gone(gpu: Gpu) -> None:
    """Again and again, at any moment of its life; right after the last user the module goes."""
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
    """While its memory is being unmapped, rewritten, or does not answer."""
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
