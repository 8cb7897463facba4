# SPDX-License-Identifier: Apache-2.0
"""The product's units in a lab host booted by systemd (`lab run --systemd`): they recover, and no VM notices."""

import subprocess

import pytest

from tests.product.hook import refusal
from tests.product.host import Host, new_uuid
from tests.product.units import UNITS, active, main_pid, systemctl
from tests.rig.product import eventually


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_that_is_killed_comes_back(host: Host, unit: str) -> None:
    """The unit has another process; the running VM keeps its slice, the next VM starts, and the last device is
    removed."""
    host.api.tenant("blue", share_permille=500)
    vm_uuid = new_uuid()
    running = host.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    standing = host.claim("blue", share_permille=100, vm_uuid=vm_uuid)
    host.play(running, vm_uuid=vm_uuid)
    before = main_pid(unit)
    assert before > 0
    systemctl("kill", "--signal=SIGKILL", unit)
    eventually(lambda: active(unit) and main_pid(unit) not in (0, before), what=f"{unit} is back")
    assert host.is_open(running)
    eventually(lambda: refusal(standing, vm_uuid=vm_uuid) == "", what="the next VM starts")
    eventually(host.api.answers, what="the API answers")
    host.open(standing, vm_uuid=vm_uuid)
    host.stop(standing)
    eventually(lambda: host.devices() == {running}, what="the device of the stopped VM is gone")


def test_the_helper_has_a_gpu_bound_again_in_its_sandbox(host: Host) -> None:
    """The helper's sandbox lets it neither load a module nor write outside the devices' directories: udev does that."""
    host.gpu.sysfs.unbind(host.gpu.address)
    eventually(host.has_its_gpu, what="the GPU is bound again", timeout_s=120)


def test_nobody_reaches_the_sockets_but_root_and_the_agent(host: Host) -> None:
    """An ordinary user of the host can neither ask the helper nor act as libvirt's hook."""
    assert host.empty()
    for path in ("/run/vgpumgr/helper.sock", "/run/vgpumgr/hook.sock"):
        probe = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
        command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "python3", "-c", probe]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "PermissionError" in done.stderr
