# SPDX-License-Identifier: Apache-2.0
"""The agent's root helper and real executors of real slices.

In a lab host that systemd has booted (`lab run --systemd --compute`) an executor is a unit. Otherwise it is a process
in its own cgroup.
"""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.drawing import COMPUTE
from tests.rig.gpu import Gpu, poll
from tests.rig.slice_executor import children_of
from vgpumgr.broker.places import pocl_library
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs

CHECKOUT = Path(__file__).parents[2]
sys.path.append(str(CHECKOUT / "agent"))  # in a lab host it is installed only together with the product
from vgpumgr_agent import faults  # noqa: E402

pytestmark = pytest.mark.skipif(not COMPUTE.exists(), reason="this lab host does not compute: lab run --compute")

UUID = "c0ffee00-0000-4000-8000-0000000000e1"
VM = "c0ffee00-0000-4000-8000-0000000000aa"
SETTINGS = Path("/etc/vgpumgr/agent.toml")
UNITS = Path("/run/systemd/system")
TEMPLATE = "vgpumgr-executor@.service"
READY_S = 60.0  # with emulation


@contextmanager
def helpers_operations(records_at: Path, more: str = "") -> Iterator[Any]:
    """The helper's operations, with the settings of a host whose executors compute, and `more`."""
    from vgpumgr_agent.helper import execution, main
    from vgpumgr_agent.helper.operations import Operations
    from vgpumgr_agent.helper.records import Records

    before = SETTINGS.read_bytes() if SETTINGS.exists() else None
    SETTINGS.parent.mkdir(exist_ok=True)
    SETTINGS.write_text(
        f'[executor]\nlibrary = "{pocl_library()}"\ndirectory = "{COMPUTE}"\nmemory_max_bytes = 1073741824\n{more}'
    )
    if UNITS.is_dir():
        shutil.copy(CHECKOUT / "agent/systemd" / TEMPLATE, UNITS)
    records = Records(records_at)
    records.make_directory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "READY_S", READY_S)
        yield Operations(
            sysfs=Sysfs(),
            open_control=Control,
            records=records,
            executors=main._executors(),
            brokers=main.make_brokers(Sysfs()),
        )
    SETTINGS.unlink() if before is None else SETTINGS.write_bytes(before)


@pytest.fixture
def helper(gpu: Gpu, tmp_path: Path) -> Iterator[Any]:
    """The helper's operations, with the settings of a host whose GPU lends."""
    with helpers_operations(tmp_path / "records") as operations, gpu.leasing():
        yield operations
        operations.run("remove", {"uuid": UUID, "vm_gone": False, "withdraw": True})
        gpu.sysfs.write_gpu(gpu.address, "attach", "any")


def prepare(helper: Any, gpu: Gpu, tenant: str = "blue", driver: str = "vgpumgr") -> None:
    share = {"weight": 100, "cap_us": 0, "cap_period_us": 0}
    members = {"uuid": UUID, "gpu": gpu.address, "mdev_type": f"{driver}-mem64m", "tenant": tenant, "vm_uuid": VM}
    helper.run("prepare", {**members, **share})


def dies_at(point: str, operation: Callable[[], None]) -> None:
    """Run the operation in a helper that is killed at a crash point; no other process is harmed."""
    pid = os.fork()
    if pid == 0:
        os.environ[faults.VARIABLE] = point
        try:
            operation()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


def executors() -> list[int]:
    """The numbers of all processes of this slice's executor, whether or not anything recorded them."""
    words = ((int(path.parent.name), path.read_bytes().split(b"\0")) for path in Path("/proc").glob("[0-9]*/cmdline"))
    return [pid for pid, line in words if line[0].endswith(b"vgpu-executor") and UUID.encode() in line]


def executor(helper: Any) -> dict[str, Any]:
    (found,) = helper.run("observe", {})["executors"]
    return dict(found)


def test_an_executor_is_ready_before_the_vm_restarted_when_killed_and_gone_with_its_slice(
    helper: Any, gpu: Gpu
) -> None:
    prepare(helper, gpu)
    first = executor(helper)
    assert first["state"] == "running", first
    assert gpu.sysfs.permit_s(UUID) > 0
    assert len(children_of(first["pid"], "vgpu-supervisor")) == 1
    cgroup = Path(f"/proc/{first['pid']}/cgroup").read_text()
    unit = f"vgpumgr-blue.slice/vgpumgr-executor@{UUID}.service"
    assert (unit if UNITS.is_dir() else f"vgpumgr/blue/{UUID}") in cgroup

    os.kill(first["pid"], signal.SIGKILL)
    poll(lambda: executor(helper)["state"] == "failed")
    assert executor(helper)["reason"] == "it was killed by SIGKILL"
    assert helper.run("execute", {"uuid": UUID}) == {"started": True}
    poll(lambda: executor(helper)["state"] == "running", timeout_s=READY_S)
    second = executor(helper)
    assert second["pid"] != first["pid"]

    assert helper.run("remove", {"uuid": UUID, "vm_gone": False, "withdraw": True})["state"] in ("absent", "pending")
    poll(lambda: not gpu.sysfs.exists(UUID))
    assert helper.run("observe", {})["executors"] == []
    assert not Path(f"/proc/{second['pid']}").exists()
    assert not list(Path("/sys/fs/cgroup").rglob(f"*{UUID}*"))


def test_an_executor_that_cannot_bind_says_so_and_no_device_is_left(helper: Any, gpu: Gpu) -> None:
    from vgpumgr_agent.refused import Refused

    SETTINGS.write_text(f'[executor]\nlibrary = "{pocl_library()}"\ndirectory = "/usr/bin"\n')
    with pytest.raises(Refused, match=r"executor\.failed"):
        prepare(helper, gpu)
    assert not gpu.sysfs.exists(UUID)
    assert helper.run("observe", {})["executors"] == []


def test_another_tenant_gets_another_executor(helper: Any, gpu: Gpu) -> None:
    prepare(helper, gpu)
    before = executor(helper)
    prepare(helper, gpu, tenant="blue-team")
    after = executor(helper)
    assert (after["state"], after["pid"] != before["pid"]) == ("running", True)


@pytest.mark.parametrize("point", faults.EXECUTOR_POINTS)
def test_what_a_killed_helper_started_becomes_the_executor_or_goes(helper: Any, gpu: Gpu, point: str) -> None:
    if point == "execute.launched" and UNITS.is_dir():
        pytest.skip("systemd starts what it is told to start")
    dies_at(point, lambda: prepare(helper, gpu))
    prepare(helper, gpu)
    found = executor(helper)
    assert found["state"] == "running"
    assert executors() == [found["pid"]]


def test_a_removal_that_is_killed_is_done_again(helper: Any, gpu: Gpu) -> None:
    prepare(helper, gpu)
    removal = {"uuid": UUID, "vm_gone": False, "withdraw": True}
    dies_at("remove.stopped", lambda: helper.run("remove", removal))
    helper.run("remove", removal)
    poll(lambda: not gpu.sysfs.exists(UUID))
    assert (helper.run("observe", {})["executors"], executors()) == ([], [])
