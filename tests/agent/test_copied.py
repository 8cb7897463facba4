# SPDX-License-Identifier: Apache-2.0
"""The disk of a host, copied to a second machine: the copy is never taken for the host, whatever files it has."""

import contextlib
import threading
from pathlib import Path

import pytest
from vgpumgr_agent.api import ApiAwayError

from tests.agent.fakeapi import FakeApi, claim, group
from tests.agent.fakekernel import FakeKernel
from tests.agent.host import VM, A, B, Host
from tests.agent.test_metrics import samples, show


def become(kernel: FakeKernel, firmware: str, installation: str = "1" * 32) -> None:
    """Give the machine these names from now on."""
    for path, name in zip(kernel.paths.machine, (installation, firmware), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")


@pytest.fixture
def original(kernel: FakeKernel, host: Host) -> Host:
    become(kernel, "FIRST")
    host.api.set(groups=[group()], slices=[claim(A, vm=VM), claim(B, vm=None)])
    host.learn()
    host.learn()
    return host


def copy(host: Host, firmware: str = "second") -> None:
    """Start the agent on another machine with everything from the first machine's disk."""
    become(host.kernel, firmware)
    host.kernel.reboot()
    host.restart()


def test_a_copy_asks_the_api_for_nothing(original: Host) -> None:
    copy(original)
    original.reconcile()
    asked, reports = original.api.asked, len(original.api.reports)
    with pytest.raises(ApiAwayError, match="its disk is a copy"):
        original.learn()
    with pytest.raises(ApiAwayError, match="its disk is a copy"):
        original.agent.control_plane.refresh()
    original.agent.control_plane.deliver_usage()
    assert original.api.asked == asked
    assert len(original.api.reports) == reports


def test_it_reports_nothing(original: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(original)
    original.agent.reconcile()
    reports, handed_over = len(original.api.reports), original.agent.reporter.waiting
    told = threading.Thread(target=original.agent.reporter.deliver)
    told.start()
    while handed_over is not None and original.agent.reporter.waiting is handed_over:
        assert told.is_alive()
    original.agent.stop()
    told.join(30)
    assert not told.is_alive()
    assert len(original.api.reports) == reports


@pytest.mark.parametrize("looked", [False, True])
def test_no_vm_starts_there_not_even_at_once(original: Host, *, looked: bool) -> None:
    copy(original)
    if looked:
        original.reconcile()
    assert original.refused(A) == "host.copied"
    assert original.slices() == set()


def test_its_log_status_and_metric_say_so(original: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy(original)
    show(original, tmp_path / "agent.prom")
    original.reconcile()
    original.reconcile()
    assert len([record for record in caplog.records if "its disk is a copy" in record.message]) == 1
    assert "its disk is a copy" in original.agent._status()
    assert samples(tmp_path / "agent.prom")["vgpumgr_agent_copied"] == 1
    assert original.kernel.tenants == {}


@pytest.mark.parametrize("firmware", ["FIRST", "first"])
def test_the_same_machine_after_a_boot_is_itself(original: Host, firmware: str) -> None:
    copy(original, firmware)
    original.learn()
    original.start(A)
    assert original.slices() == {A}


def test_another_name_of_the_installation_is_another_machine(original: Host) -> None:
    become(original.kernel, "first", "2" * 32)
    original.restart()
    assert original.refused(A) == "host.copied"


def test_a_machine_without_a_name_is_taken_for_the_host(original: Host) -> None:
    for path in original.kernel.paths.machine:
        path.unlink()
    original.restart()
    original.learn()
    original.start(A)


def test_a_new_one_time_token_makes_it_a_host_of_its_own(original: Host, api: FakeApi) -> None:
    copy(original)
    original.reconcile()
    api.one_time_tokens.add("second")
    original.token_file.write_text("second\n")
    with contextlib.suppress(ApiAwayError):
        original.learn()
    original.learn()
    original.start(A)
    original.restart()
    original.learn()
    original.start(A)
    copy(original, "FIRST")
    assert original.refused(A) == "host.copied"
