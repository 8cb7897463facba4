# SPDX-License-Identifier: Apache-2.0
"""What the agent tells the API, its log and systemd."""

import errno
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent.api import ApiRefusedError
from vgpumgr_agent.backends.kmod import KmodBackend
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.pauses import Pauses

from tests.agent.fakeapi import claim, group
from tests.agent.host import VM, A, B, C, Host


def test_applied_share_is_what_the_kernel_has_not_what_was_asked_for(claimed: Host) -> None:
    claimed.start(A)
    claimed.kernel.open(str(A))
    claimed.kernel.fail["set_tenant"] = [errno.ERANGE] * 9
    claimed.kernel.fail["set_slice"] = [errno.ERANGE] * 9
    claimed.api.set(groups=[group("blue", 150)], slices=[claim(A, vm=VM, share=150)])
    claimed.learn()
    report = claimed.api.last()
    assert {each.id: each.applied_permille for each in report.slices}[A] == 300
    assert any("blue" in refusal for refusal in report.refusals)


def test_a_helper_that_is_away_is_reported_and_confirms_nothing(claimed: Host) -> None:
    claimed.agent._backend = KmodBackend(HelperClient(Path("/nonexistent")), call_s=0.1)
    claimed.reconcile()
    report = claimed.api.last()
    assert (report.slices, report.desired_epoch, len(report.gpus)) == ([], None, 2)
    assert "vgpumgr-helper" in report.refusals[0]


def test_reports_that_the_api_refuses_are_named_once(
    claimed: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    def refuse(*_: object) -> None:
        asked.append(1)
        if len(asked) == 3:
            claimed.agent.stop()
        claimed.reconcile()
        raise ApiRefusedError("body.too_large", "the body is larger than 8 MiB")

    monkeypatch.setattr(claimed.api, "report", refuse)
    claimed.agent.reporter._pauses = Pauses(0, 0)
    with caplog.at_level("WARNING"):
        claimed.agent.reporter.deliver()
    assert len(asked) == 3
    said = [record.getMessage() for record in caplog.records]
    assert said == ["report not delivered: body.too_large: the body is larger than 8 MiB"]


def test_the_watchdog_hears_of_each_action_done_or_refused(claimed: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    monkeypatch.setattr("vgpumgr_agent.actions.notify", lambda *, watchdog: said.append(watchdog))
    claimed.kernel.fail["set_tenant"] = [errno.ERANGE]
    claimed.api.set(groups=[group("blue", 150), group("green", 150)])
    claimed.agent.control_plane._step()
    claimed.reconcile()
    assert said == [True] * 3  # the refused slice is tried again


def test_each_doubt_about_the_desired_state_is_named_once(claimed: Host, caplog: pytest.LogCaptureFixture) -> None:
    def said(**change: Any) -> list[str]:
        caplog.clear()
        claimed.api.set(**change)
        claimed.learn()
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    slices = claimed.api.document.slices
    (lost,) = said(slices=[each for each in slices if each.id != A])
    assert str(A) in lost
    assert said(groups=[group("blue", 500)]) == []
    (lost,) = said(slices=[each for each in slices if each.id == B])
    assert str(C) in lost
    (doubt,) = said(epoch_confirmed=False)
    assert "not confirmed" in doubt
    assert said(generation=99) == []
    assert said(epoch_confirmed=True, slices=slices) == []
    assert claimed.api.last().refusals == []
    assert len(said(slices=[])) == 3
