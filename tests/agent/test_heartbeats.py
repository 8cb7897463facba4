# SPDX-License-Identifier: Apache-2.0
"""What the agent reports while nothing changes, and how it repeats a report that could not be delivered."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from vgpumgr_agent import reporter
from vgpumgr_agent.api import ApiAwayError, ApiRefusedError
from vgpumgr_agent.pauses import RETRY_AFTER_MAX_S, Pauses
from vgpumgr_agent.reporter import REPEAT_S, Reporter

from tests.agent.host import VM, A, Host
from tests.agent.test_meter import run
from vgpumgr.wire.fleet import HeartbeatTaken, Report, Reported

COUNTERS_S = 60.0
RUN_NS = 1_000_000


class Telling:
    """A reporter of a host with claims, one step at a time. `said`: what the API received, by kind."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.now_s = 0.0
        self.paused_s: list[float] = []
        self.asked_to_renew: list[int] = []
        assert host.store is not None
        self.reporter = Reporter(
            api=host.api,
            store=host.store,
            stop=host.agent._stop,
            counters_s=COUNTERS_S,
            renew_soon=self.asked_to_renew.append,
            pauses=Pauses(1.0, 30.0),
            clock=lambda: self.now_s,
        )
        host.agent.reporter = self.reporter
        host.api.reports.clear()

    @property
    def said(self) -> tuple[int, int]:
        """The numbers of reports and of heartbeats."""
        return len(self.host.api.reports), len(self.host.api.beats)

    def once(self, after_s: float = 0.0, *, look: bool = True) -> tuple[int, int]:
        """Look at the host after this time, try to deliver what is due, and return the counts so far."""
        self.now_s += after_s
        if look:
            self.host.agent.reconcile()
        wait, self.host.agent._stop.wait = self.host.agent._stop.wait, self._stopped
        next_one, self.reporter._tell = self.reporter._tell, self._last(self.reporter._tell)
        self.reporter.deliver()
        self.host.agent._stop.wait, self.reporter._tell = wait, next_one
        self.host.agent._stop.clear()
        return self.said

    def _stopped(self, timeout: float | None = None) -> bool:
        self.paused_s.append(timeout or 0)
        return True

    def _last(self, tell: Callable[..., None]) -> Callable[..., None]:
        def told(*arguments: Any) -> None:
            self.host.agent._stop.set()
            tell(*arguments)

        return told


@pytest.fixture
def telling(claimed: Host) -> Telling:
    return Telling(claimed)


def test_a_host_of_which_nothing_changes_sends_heartbeats(telling: Telling) -> None:
    assert telling.once() == (1, 0)
    for number in range(1, 5):
        assert telling.once(10) == (1, number)
    (report,) = telling.host.api.reports
    for beat in telling.host.api.beats:
        assert (beat.boot_id, beat.agent_epoch, beat.seq) == (report.boot_id, report.agent_epoch, report.seq)


def test_what_changes_is_reported_at_once(telling: Telling) -> None:
    telling.once()
    telling.host.start(A)
    assert telling.once() == (2, 0)
    telling.host.kernel.open(str(A))
    assert telling.once() == (3, 0)
    telling.host.api.set()  # same content, new generation: an absent slice is absent under that generation
    telling.host.agent.control_plane._step()
    assert telling.once() == (4, 0)
    assert telling.once() == (4, 1)


def test_counters_that_move_are_told_now_and_then(telling: Telling) -> None:
    telling.host.start(A)
    telling.host.kernel.open(str(A))
    telling.once()
    run(telling.host, RUN_NS)
    assert telling.once(0.7 * COUNTERS_S) == (1, 1)
    assert telling.once(0.6 * COUNTERS_S) == (2, 1)
    assert sum(group.run_ns for group in telling.host.api.last().groups) == RUN_NS
    assert telling.once(2 * COUNTERS_S) == (2, 2)  # the counters stand still


def test_memory_that_programs_take_and_give_back_is_a_counter(claimed: Host) -> None:
    before = claimed.api.last()
    first, *others = before.slices
    executor = first.executor.model_copy(update={"memory_used_bytes": 5})
    after = before.model_copy(update={"slices": [first.model_copy(update={"executor": executor}), *others]})
    assert reporter._stated(after) == reporter._stated(before)
    assert reporter._counted(after) != reporter._counted(before)


def test_a_report_is_repeated_in_the_end(telling: Telling) -> None:
    telling.once()
    assert telling.once(0.7 * REPEAT_S) == (1, 1)
    assert telling.once(0.6 * REPEAT_S) == (2, 1)


def test_an_api_that_has_another_report_gets_this_one(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    telling.once()
    with monkeypatch.context() as patch:
        patch.setattr(telling.host.api, "heartbeat", lambda *_: HeartbeatTaken(accepted=False))
        assert telling.once() == (2, 0)
    assert telling.once() == (2, 1)


def test_an_api_without_heartbeats_gets_reports(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise ApiRefusedError("route.unknown", "no such path")

    monkeypatch.setattr(telling.host.api, "heartbeat", unknown)
    assert [telling.once(10) for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]
    assert telling.paused_s == []


def test_after_a_report_that_was_dropped_another_is_sent(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(telling.host.api, "report", lambda *_: Reported(accepted=False))
        telling.once()
    assert telling.once() == (1, 0)


def test_what_was_not_delivered_is_kept_for_another_try(telling: Telling) -> None:
    telling.host.api.away = True
    telling.once()
    kept = telling.reporter.waiting
    assert isinstance(kept, Report)
    telling.host.api.away = False
    assert telling.once(look=False) == (1, 0)
    assert telling.host.api.last() == kept


def test_a_newer_report_is_not_replaced_by_one_that_failed(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        telling.host.agent.reconcile()
        raise ApiAwayError("gone")

    monkeypatch.setattr(telling.host.api, "report", refuse)
    telling.once()
    assert telling.reporter.waiting is not None
    assert telling.reporter.waiting.seq == telling.host.agent._seq


def test_a_heartbeat_that_is_told_of_a_fence_ends_all_claims(telling: Telling) -> None:
    telling.once()

    def fenced(*_: object) -> None:
        raise ApiRefusedError("host.fenced", "declared dead")

    telling.host.api.heartbeat = fenced  # type: ignore[method-assign]
    telling.once()
    assert telling.host.refused(A, vm=VM) == "host.fenced"


def test_pauses_grow_and_begin_anew_when_it_answers(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, high: high)
    telling.host.api.away = True
    for _ in range(7):
        telling.once()
    assert telling.paused_s == [1, 2, 4, 8, 16, 30, 30]
    telling.host.api.away = False
    telling.once()
    telling.host.api.away = True
    telling.once()
    assert telling.paused_s[-1] == 1


def test_pauses_differ_between_hosts_and_heed_the_api() -> None:
    drawn = {Pauses(1.0, 30.0).after(ApiAwayError("gone")) for _ in range(50)}
    assert len(drawn) > 40
    assert all(0.5 <= pause_s <= 1 for pause_s in drawn)
    asked = {Pauses(1.0, 30.0).after(ApiRefusedError("rate.exceeded", "x", retry_after_s=20)) for _ in range(50)}
    assert len(asked) > 40
    assert all(20 <= pause_s <= 25 for pause_s in asked)
    absurd = Pauses(1.0, 30.0).after(ApiRefusedError("database.busy", "x", retry_after_s=1e9))
    assert absurd <= 1.25 * RETRY_AFTER_MAX_S
