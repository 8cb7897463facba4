# SPDX-License-Identifier: Apache-2.0
"""Who may open a slice, and how often."""

import errno
import os
from pathlib import Path

from tests.kmod.control.given import new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.kernel import kernel_log
from tests.rig.vfio import opened
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs


def open_status(uuid: str) -> int:
    """0, or the errno with which the open was refused."""
    try:
        with opened(uuid):
            return 0
    except OSError as error:
        return error.errno or -1


def test_a_permit_is_for_one_opening(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    assert open_status(uuid) == 0, "attach=any asks for none"
    host.write_gpu(GPU, "attach", "permit")
    assert control.gpu(GPU).attach == "permit"
    assert open_status(uuid) == errno.EPERM
    assert f"{uuid}: open refused: no permit (attach=permit); pid {os.getpid()} (" in kernel_log()
    host.grant(uuid)
    assert 0 < host.permit_s(uuid) <= 120
    assert open_status(uuid) == 0
    assert host.permit_s(uuid) == 0
    assert open_status(uuid) == errno.EPERM


def test_a_permit_that_was_withdrawn_is_worth_nothing(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    other = new_slice(host)
    host.write_gpu(GPU, "attach", "permit")
    host.grant(uuid)
    assert open_status(other) == errno.EPERM, "it is for one slice"
    assert host.permit_s(other) == 0
    host.withdraw(uuid)
    assert host.permit_s(uuid) == 0
    assert open_status(uuid) == errno.EPERM
    host.withdraw(uuid)


def test_only_root_may_see_or_write_permits(host: Sysfs) -> None:
    uuid = new_slice(host)
    assert (Path("/sys/bus/mdev/devices") / uuid / "permit").stat().st_mode & 0o777 == 0o600
