# SPDX-License-Identifier: Apache-2.0
"""The agent of a host that was declared dead and is not: it says so once, harms no VM, and waits for a new token."""

from collections.abc import Iterator

import pytest
from vgpumgr_agent.api import ApiRefusedError

from tests.agent.host import VM, A, B, Host

FENCED = "host host-1 was declared dead; stop the VMs that still run there, and have it re-enrolled"


@pytest.fixture
def fenced(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A VM runs with A."""
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.learn()

    def refuse() -> None:
        if claimed.api.used != claimed.api.token:
            raise ApiRefusedError("host.fenced", FENCED)

    monkeypatch.setattr(claimed.api, "_authorised", refuse)
    claimed.api.token = "fenced"
    claimed.agent.control_plane._pause_min_s = 0
    yield claimed
    claimed.agent.stop()


def follow(host: Host, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many steps of the thread that asks for desired state."""
    control_plane = host.agent.control_plane
    step, left = control_plane._step, [times]

    def counted() -> None:
        left[0] -= 1
        if not left[0]:
            host.agent.stop()
        step()

    monkeypatch.setattr(control_plane, "_step", counted)
    control_plane.follow()
    monkeypatch.setattr(control_plane, "_step", step)
    host.agent._stop.clear()


def deliver(host: Host, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many attempts of the thread that delivers reports."""
    report, left = host.api.report, [times]

    def counted(*said: object) -> object:
        left[0] -= 1
        if not left[0]:
            host.agent.stop()
        host.reconcile()
        return report(*said)

    monkeypatch.setattr(host.api, "report", counted)
    host.reconcile()
    host.agent.control_plane.deliver()
    host.agent._stop.clear()


@pytest.mark.parametrize("token", ["there, used", "not there"])
def test_one_line_says_it_and_running_vms_are_left_alone(
    fenced: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    if token == "not there":
        fenced.token_file.unlink()
    with caplog.at_level("WARNING"):
        follow(fenced, 3, monkeypatch)
        deliver(fenced, 3, monkeypatch)
    assert [record.getMessage() for record in caplog.records] == [f"API: host.fenced: {FENCED}"]
    assert fenced.agent.control_plane.trouble == f"host.fenced: {FENCED}"
    assert set(fenced.kernel.slices) == {str(A)}


def test_its_lease_runs_out(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced.clock.go(24 * 3600 - 10)
    follow(fenced, 2, monkeypatch)
    fenced.clock.go(20)
    assert fenced.refused(B) == "lease.expired"


def test_a_new_one_time_token_brings_it_back(fenced: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(fenced, 2, monkeypatch)
    assert fenced.api.enrolments == 1
    fenced.api.one_time_tokens.add("second")
    fenced.token_file.write_text("second\n")
    follow(fenced, 2, monkeypatch)
    assert fenced.api.enrolments == 2
    assert fenced.agent.control_plane.trouble == ""
    fenced.start(B, vm=VM)
