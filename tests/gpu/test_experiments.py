# SPDX-License-Identifier: Apache-2.0
"""T3 and T5 to T9 on the fake GPU: each passes on an honest fake, and fails on the fake that misbehaves in its way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.evidence import cheats, live, memory
from tests.gpu.evidence.bench import Bench
from tests.gpu.fakerm.fake import FakeRm
from tests.gpu.fakerm.gpu import Behaviour
from vgpumgr.gpu.duel import Duel, Result, RigError
from vgpumgr.gpu.shares import Effort

EFFORT = Effort(repeats=3, seconds=0.3)
# 100 ms after a change are left out, and a turn of both tenants takes 20 ms.
LIVE = Effort(repeats=3, seconds=1.2)
HONEST = Behaviour(refill_ns=300_000)
IGNORES = Behaviour(honour="ignore")
NEVER_STOPS = Behaviour(preempts=False)


def outcome(test: Callable[[Bench], dict[str, Any]], behaviour: Behaviour, **options: Any) -> dict[str, Any]:
    with FakeRm(behaviour, **options) as fake:
        return test(Bench(fake.rig, LIVE if test in (live.t3, live.t9) else EFFORT))


def test_t3_a_change_is_seen_while_the_tenant_runs() -> None:
    result = outcome(live.t3, HONEST)
    assert result["verdict"] == "pass"
    assert result["figures"]["after"]["mean"] == pytest.approx(live.EXPECTED, abs=0.01)


def test_t3_an_answer_of_ok_is_not_taken_for_a_change() -> None:
    result = outcome(live.t3, IGNORES)
    assert result["verdict"] == "fail"
    assert result["figures"]["status"] == ["OK"]


def test_t3_tells_that_the_driver_refused() -> None:
    result = outcome(live.t3, HONEST, refuse_timeslice=True)
    assert result["verdict"] == "fail"
    assert result["figures"]["status"] == ["INSUFFICIENT_PERMISSIONS"]


def test_t5_more_channel_groups_get_more_unless_the_timeslice_is_divided() -> None:
    result = outcome(cheats.t5, HONEST)
    assert result["verdict"] == "pass"
    assert result["figures"]["undivided"]["mean"] == pytest.approx(0.75, abs=0.01)
    assert result["figures"]["divided"]["mean"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.long
def test_t5_dividing_does_not_help_where_timeslices_are_clamped() -> None:
    result = outcome(cheats.t5, Behaviour(honour="clamp", clamp_us=(2000, 10_000)))
    assert result["verdict"] == "fail"
    assert result["figures"]["divided"]["mean"] > 0.7


def test_t6_a_long_kernel_is_stopped_at_the_end_of_its_timeslice() -> None:
    result = outcome(cheats.t6, HONEST)
    assert result["verdict"] == "pass"
    # The stop is not immediate either, because the timeslice must end first.
    assert result["figures"]["p99_us"] > cheats.TIMESLICE_US / 2


def test_t6_a_gpu_that_cannot_stop_kernels_is_found_out() -> None:
    result = outcome(cheats.t6, NEVER_STOPS)
    assert result["verdict"] == "fail"
    assert result["figures"]["p99_us"] > EFFORT.seconds * 1e6 / 10


def test_t6_a_neighbour_that_never_got_a_turn_is_no_neighbour_that_never_waited() -> None:
    result = outcome(cheats.t6, Behaviour(turns_of_first=1_000_000))
    assert result["verdict"] == "fail"
    assert result["settings"][0]["latency_us"]["count"] > 0


def test_t7_a_request_that_was_not_accepted_shows_nothing() -> None:
    result = outcome(cheats.t7, HONEST, refuse_wfi=True)
    assert result["verdict"] == "inconclusive"
    assert "was not accepted: NOT_SUPPORTED" in result["reason"]


def test_t7_unpreemptible_kernels_do_harm_that_the_shim_prevents() -> None:
    result = outcome(cheats.t7, HONEST)
    assert result["verdict"] == "pass"
    assert result["figures"]["cheat_works"]
    answers = {setting["name"]: setting["wfi_status"] for setting in result["settings"]}
    assert answers == {"unfiltered": ["OK"], "refused": ["INSUFFICIENT_PERMISSIONS"], "made CILP": ["OK"]}


def test_t7_filtering_does_not_help_on_a_gpu_that_cannot_stop_kernels() -> None:
    assert outcome(cheats.t7, NEVER_STOPS)["verdict"] == "fail"


def test_t8_time_is_shared_also_where_throughput_is_not() -> None:
    result = outcome(memory.t8, HONEST)
    assert result["verdict"] == "pass"
    # Refilling caches costs the memory-bound tenant and not its neighbour.
    assert result["figures"]["throughput_of_exclusive"]["mean"] < memory.EXPECTED - 0.02


@pytest.mark.long
def test_t8_equal_shares_are_not_taken_for_those_that_were_asked_for() -> None:
    assert outcome(memory.t8, IGNORES)["verdict"] == "fail"


def test_t9_a_foreign_process_may_set_the_timeslice_of_a_tenant() -> None:
    result = outcome(live.t9, HONEST)
    assert result["verdict"] == "pass"
    assert result["figures"]["status"] == ["OK"]


@pytest.mark.long
def test_t9_is_not_taken_for_granted_because_the_driver_said_ok() -> None:
    assert outcome(live.t9, IGNORES)["verdict"] == "fail"


def test_t9_runs_nothing_of_the_folder_it_is_run_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json.py of the folder')")
    monkeypatch.chdir(tmp_path)
    with FakeRm() as fake:
        assert live.measure(Bench(fake.rig, EFFORT), live.by_a_foreign_process, None).status == 0


@pytest.mark.parametrize(
    ("ends_with", "error"),
    [("print('{\"errno\": 1}')", PermissionError), ("raise ImportError('no such')", RigError), ("exit(1)", RigError)],
)
def test_t9_tells_what_the_kernel_refused_from_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, ends_with: str, error: type[Exception]
) -> None:
    monkeypatch.setattr(live, "AGENT", ("-c", ends_with))
    with FakeRm() as fake, pytest.raises(error):
        live.measure(Bench(fake.rig, EFFORT), live.by_a_foreign_process, None)


def test_a_change_lasts_from_the_mark_to_its_return() -> None:
    second = 1_000_000_000
    at = [*range(0, second, 10_000_000)]
    b = Result(
        tenant="B",
        pid=2,
        rounds=1,
        start_ns=0,
        end_ns=second,
        done_ns=at,
        latency_us=[0.0] * len(at),
        shim=(),
        gpu="",
        wfi_statuses=(),
        mark_ns=(),
    )
    # A works until the mark, stops during the change, and then works as before.
    gap = [t for t in at if not 400_000_000 < t < 600_000_000]
    a = replace(b, tenant="A", done_ns=gap, mark_ns=(400_000_000, 600_000_000))
    change = live.Change(duel=Duel(results=[a, b], seconds=1.0), status=0)
    assert change.before == pytest.approx(0.5)
    assert change.after == pytest.approx(0.5)
