# SPDX-License-Identifier: Apache-2.0
"""The engine `edu` with a device that does not end a job: work on that GPU ends, and nobody waits for it."""

import errno
import os
import signal
from pathlib import Path

import pytest

from tests.rig import migration
from tests.rig.client import Client, client
from tests.rig.edu import TIMEOUT_MS, choose, config_bit, engine, rebind, saved, state
from tests.rig.gpu import ADDRESS, SECOND, Gpu, poll
from tests.rig.migration import RUNNING, STOP, restore, save, set_state
from tests.rig.ring import REG_ERROR, REG_STATUS, Guest
from tests.rig.vfio import opened
from vgpumgr.control.netlink import Control
from vgpumgr.errors import BusyError

FROZEN = Path("/sys/kernel/debug/vgpumgr") / ADDRESS / "frozen"
VGPU_ERROR_ENGINE = 12  # kmod/uapi/vgpu_device.h
PCI_COMMAND, PCI_COMMAND_MEMORY = 4, 2


def saturating(gpu: Gpu, tenant: str, n: int = 1000) -> tuple[str, Client]:
    """A slice of a new tenant whose client sends factorials for ever."""
    gpu.tenant(tenant, weight=100, timeslice_us=2000)
    uuid = gpu.slice(tenant)
    user = Client(["--json", uuid, "saturate", "--op", "fact", "--fact-n", str(n), "--seconds", "300"])
    gpu.wait_queued(uuid)
    return uuid, user


def assert_stopped(gpu: Gpu, uuid: str, user: Client) -> None:
    """The client was told the reason, and the slice cannot be enabled again."""
    report = user.wait(expected=(5,)).report("record", "saturate")
    assert (report["error_name"], report["mismatches"]) == ("engine", 0)
    assert "error engine" in client(uuid, "info", expected=(3,)).output
    assert gpu.slice_stats(uuid).error == 0, "closing resets a slice"


def test_a_wedged_engine_ends_the_work_of_this_gpu_until_it_is_bound_again(edu: Gpu) -> None:
    users = [saturating(edu, tenant) for tenant in ("blue", "green")]
    FROZEN.write_text("1")
    for uuid, user in users:
        assert_stopped(edu, uuid, user)
    assert state(edu) == "wedged"
    assert edu.control.gpu(ADDRESS).wedged
    FROZEN.write_text("0")
    assert "error engine" in client(users[0][0], "info", expected=(3,)).output

    edu.clear()
    rebind(edu)
    assert not edu.control.gpu(ADDRESS).wedged
    choose(edu)
    edu.tenant("blue", weight=100, timeslice_us=1000)
    assert client(edu.slice("blue"), "verify").status == 0


@pytest.mark.parametrize("given_up", [False, True])
def test_a_job_that_does_not_end_is_no_matter_of_another_gpu(edu: Gpu, second_gpu: Gpu, given_up: bool) -> None:
    """Other GPUs go on while the job is waited for and after it has wedged the engine, and netlink answers."""
    TIMEOUT_MS.write_text("300" if given_up else "600000")
    stuck, user = saturating(edu, "blue")
    second_gpu.tenant("green", weight=100, timeslice_us=2000)
    works = second_gpu.slice("green")
    with second_gpu.loaded({works: {"op": "mix", "queued_min": 0}}) as outcomes:
        FROZEN.write_text("1")
        if given_up:
            assert_stopped(edu, stuck, user)
        before = second_gpu.slice_stats(works).items
        poll(lambda: second_gpu.slice_stats(works).items > before + 100)

        another = second_gpu.slice("green")
        assert client(another, "verify").status == 0
        second_gpu.sysfs.remove(another)
        with Control() as asking:
            assert {gpu.name: gpu.wedged for gpu in asking.gpus()} == {ADDRESS: given_up, SECOND: False}
            assert {(one.uuid, one.error) for one in asking.slices()} == {(stuck, 0), (works, 0)}
            assert {(one.gpu, one.name) for one in asking.tenants()} >= {(ADDRESS, "blue"), (SECOND, "green")}
        before = second_gpu.slice_stats(works).items
        poll(lambda: second_gpu.slice_stats(works).items > before + 100)
    assert outcomes[0].report("name", works)["mismatches"] == 0
    assert second_gpu.sysfs.read_gpu(SECOND, "engine_state") == "working"
    user.kill()


def test_nobody_waits_for_a_job_that_does_not_end(edu: Gpu) -> None:
    """The job is not given up for ten minutes; closing, removing and unbinding return nevertheless."""
    TIMEOUT_MS.write_text("600000")
    uuid, user = saturating(edu, "blue")
    other, waiting = saturating(edu, "green")
    FROZEN.write_text("1")
    user.process.send_signal(signal.SIGKILL)
    user.process.wait()
    waiting.process.send_signal(signal.SIGKILL)
    waiting.process.wait()
    poll(lambda: not edu.slice_stats(uuid).open and not edu.slice_stats(other).open)
    edu.clear()
    assert state(edu) == "working"
    with pytest.raises(BusyError):
        edu.sysfs.write_gpu(ADDRESS, "engine", "soft")
    rebind(edu)
    assert (engine(edu), edu.control.gpu(ADDRESS).wedged) == ("soft", False)


@pytest.mark.long
def test_a_function_that_is_gone_is_noticed(edu: Gpu) -> None:
    """The device's registers do not answer, as after a surprise removal."""
    uuid, user = saturating(edu, "blue")
    with config_bit(PCI_COMMAND, PCI_COMMAND_MEMORY):
        assert_stopped(edu, uuid, user)
        assert state(edu) == "wedged"
        edu.clear()
        edu.sysfs.unbind(ADDRESS)
    edu.sysfs.bind(ADDRESS)
    choose(edu)
    edu.tenant("blue", weight=100, timeslice_us=1000)
    assert client(edu.slice("blue"), "verify").status == 0


def test_a_slice_with_work_is_not_restored_on_a_wedged_engine(edu: Gpu) -> None:
    """A slice that is not enabled can be restored: it stops when it begins to work."""
    TIMEOUT_MS.write_text("300")
    working = saved(edu)
    with opened(edu.slice("blue")) as device:
        idle = save(device)
    uuid, user = saturating(edu, "blue")
    FROZEN.write_text("1")
    assert_stopped(edu, uuid, user)
    assert state(edu) == "wedged"

    with opened(uuid) as device:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            restore(device, working)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            set_state(device, STOP)
        assert migration.state(device) == migration.ERROR
        device.reset()
        assert (device.register(REG_STATUS) & 3, device.register(REG_ERROR)) == (0, 0)
        restore(device, idle)
        assert migration.state(device) == STOP
        set_state(device, RUNNING)
        Guest().enable(device, expected=2)
        assert device.register(REG_ERROR) == VGPU_ERROR_ENGINE
