# SPDX-License-Identifier: Apache-2.0
"""A permit lasts exactly as long as the VM's start takes. The agent reports that it expired."""

import errno
import os
import time
from pathlib import Path
from uuid import UUID

import pytest

from tests.agent.fakekernel import FakeKernel
from tests.agent.host import OTHER_VM, VM, A, C, Host

QEMU = 4711
MINUTES = 30


def starts(kernel: FakeKernel, vm: UUID = VM, *, pid: int = QEMU, before_s: float = 0.0) -> None:
    """A QEMU process of a VM appears now, or appeared `before_s` ago."""
    started_s = time.clock_gettime(time.CLOCK_BOOTTIME) - before_s
    process = kernel.root / f"proc/{pid}"
    process.mkdir(parents=True)
    words = ["/usr/bin/qemu-system-x86_64", "-name", "guest=a) b", "-uuid", str(vm), "-display", "none", ""]
    (process / "cmdline").write_bytes("\0".join(words).encode())
    ticks = int(started_s * os.sysconf("SC_CLK_TCK"))
    (process / "stat").write_text(f"{pid} (qemu) x) S {' '.join(['0'] * 18)} {ticks} 0 0\n")


def ends(kernel: FakeKernel, pid: int = QEMU) -> None:
    for file in (kernel.root / f"proc/{pid}").iterdir():
        file.unlink()


def wait(host: Host, minutes: float = MINUTES) -> None:
    """The agent looks at the host every 30 s."""
    for _ in range(int(minutes * 2)):
        host.kernel.advance(30)
        host.clock.go(30)
        host.reconcile()


def error_of(host: Host, uuid: UUID = A) -> str:
    return next(one.error for one in host.api.last().slices if one.id == uuid)


def test_a_vm_that_takes_long_still_opens_its_slice(claimed: Host) -> None:
    claimed.start(A)
    starts(claimed.kernel)
    wait(claimed)
    claimed.kernel.open(str(A))
    claimed.reconcile()
    assert error_of(claimed) == ""


def test_also_while_the_agent_is_started_again(claimed: Host) -> None:
    claimed.start(A)
    starts(claimed.kernel)
    wait(claimed, 1)
    claimed.restart()
    wait(claimed)
    claimed.kernel.open(str(A))


def test_a_start_whose_process_is_gone_loses_its_permit_and_that_is_told(
    claimed: Host, caplog: pytest.LogCaptureFixture
) -> None:
    claimed.start(A)
    starts(claimed.kernel)
    wait(claimed)
    ends(claimed.kernel)
    wait(claimed, 2.5)
    assert claimed.slices() == set()
    assert "permit.expired" in error_of(claimed)
    assert "permit.expired" in caplog.text
    claimed.start(A)
    claimed.reconcile()
    assert error_of(claimed) == ""


@pytest.mark.parametrize("vm", [None, OTHER_VM])
def test_without_a_process_of_that_vm_a_permit_lasts_two_minutes(claimed: Host, vm: UUID | None) -> None:
    claimed.start(A)
    if vm is not None:
        starts(claimed.kernel, vm)
    wait(claimed, 1.5)
    assert claimed.slices() == {A}
    assert error_of(claimed) == ""
    wait(claimed, 1)
    assert claimed.slices() == set()
    assert "permit.expired" in error_of(claimed)


def test_what_is_plugged_into_a_vm_that_runs_is_opened_soon_or_never(claimed: Host) -> None:
    starts(claimed.kernel, before_s=60)
    claimed.agent.hooks.hotplug(vm_uuid=VM, devices=(A,), metadata=(), domain="test")
    wait(claimed, 2.5)
    assert claimed.slices() == set()
    assert "permit.expired" in error_of(claimed)


def test_a_vm_that_has_started_has_no_permit_left(claimed: Host) -> None:
    claimed.start(A)
    starts(claimed.kernel)
    claimed.agent.hooks.started(vm_uuid=OTHER_VM, devices=(A,), metadata=(), domain="test")
    assert claimed.kernel.permit_s(str(A)) > 0
    claimed.agent.hooks.started(vm_uuid=VM, devices=(A,), metadata=(), domain="test")
    assert claimed.kernel.permit_s(str(A)) == 0


def test_a_vm_that_ended_after_it_opened_its_slice_is_not_taken_for_one_that_did_not(claimed: Host) -> None:
    claimed.start(A)
    wait(claimed, 0.5)
    claimed.kernel.open(str(A))
    claimed.kernel.close_slice(str(A))
    claimed.reconcile()
    wait(claimed)
    assert error_of(claimed) == ""


def test_a_start_that_libvirt_gave_up_is_nothing_to_tell(claimed: Host) -> None:
    claimed.start(A)
    claimed.release(A)
    wait(claimed)
    assert error_of(claimed) == ""


def test_a_module_that_cannot_renew_gives_two_minutes_as_before(claimed: Host) -> None:
    claimed.kernel.renews = False
    claimed.start(A)
    starts(claimed.kernel)
    wait(claimed, 1.5)
    assert error_of(claimed) == ""
    wait(claimed, 1)
    assert claimed.slices() == set()
    assert "permit.expired" in error_of(claimed)


def test_one_vm_keeps_no_permit_of_another(claimed: Host) -> None:
    claimed.start(A)
    claimed.start(C, vm=OTHER_VM)
    starts(claimed.kernel, OTHER_VM)
    wait(claimed, 2.5)
    assert claimed.slices() == {C}


def test_processes_that_end_or_make_no_sense_keep_nothing(claimed: Host, tmp_path: Path) -> None:
    claimed.start(A)
    for pid, name, text in ((1, "cmdline", f"-uuid\0{VM}"), (2, "stat", "x"), (3, "cmdline", f"-uuid\0{VM}\0")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/{name}").write_text(text)
    (tmp_path / "proc/3/stat").write_text("3 (qemu) S soon")
    wait(claimed, 2.5)
    assert claimed.slices() == set()


def code_of(host: Host, uuid: UUID = A) -> str:
    return next(one.error_code for one in host.api.last().slices if one.id == uuid)


def test_an_agent_that_was_started_again_tells_of_a_permit_that_expires_under_it(claimed: Host) -> None:
    claimed.start(A)
    claimed.reconcile()
    claimed.restart()
    wait(claimed, 2.5)
    assert "permit.expired" in error_of(claimed)
    assert code_of(claimed) == "permit.expired"


def test_two_permits_that_expire_are_told_apart(claimed: Host) -> None:
    said = []
    for _ in range(2):
        claimed.start(A)
        wait(claimed, 2.5)
        said.append(error_of(claimed))
        assert code_of(claimed) == "permit.expired"
    assert said[0] != said[1]


def test_a_permit_that_the_kernel_refuses_is_told_by_hook_and_report(claimed: Host) -> None:
    claimed.kernel.fail["permit"] = [errno.EPERM]
    assert claimed.refused(A) == "permit.refused"
    claimed.reconcile()
    assert error_of(claimed).startswith("a VM did not start at ")
    assert code_of(claimed) == "permit.refused"
    assert claimed.slices() == set()
    claimed.start(A)
    claimed.reconcile()
    assert (error_of(claimed), code_of(claimed)) == ("", "")


def test_a_permit_that_the_kernel_does_not_renew_is_told(claimed: Host) -> None:
    claimed.start(A)
    starts(claimed.kernel)
    claimed.kernel.advance(60)
    claimed.clock.go(60)
    claimed.kernel.fail["permit"] = [errno.EIO] * 9
    claimed.reconcile()
    assert code_of(claimed) == "permit.refused"
    assert "was not renewed" in error_of(claimed)
