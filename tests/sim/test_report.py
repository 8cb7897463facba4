# SPDX-License-Identifier: Apache-2.0
"""Figures computed by hand from the runs and requests in this file; no engine is involved."""

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from vgpumgr.sim import figures
from vgpumgr.sim.due import Due
from vgpumgr.sim.notes import notes
from vgpumgr.sim.played import GroupPlayed, Played
from vgpumgr.sim.report import Report, latency_rows, report, share_rows, to_json
from vgpumgr.sim.scenario import read

MS = 1_000_000
RUN = np.dtype([("start_ns", "i8"), ("length_ns", "i8"), ("group", "i4"), ("slice", "i4"), ("reason", "i4")])
TWO = """\
duration: 100ms
seeds: {seeds}
{more}
tenants:
  - {{name: blue, weight: 3, workload: {{backlog: {{items: 1ms}}}}}}
  - {{name: green, weight: 1, {limit}workload: {{{workload}}}}}
"""


def scenario(*, seeds: int = 1, more: str = "", limit: str = "", workload: str = "backlog: {items: 1ms}") -> Any:
    return read(TWO.format(seeds=seeds, more=more, limit=limit, workload=workload), "a.yaml").scenario


def runs(*stays: tuple[float, float, int], reason: int = 0) -> Any:
    """Begin and length in ms, and the group."""
    return np.array([(int(at * MS), int(length * MS), group, group, reason) for at, length, group in stays], dtype=RUN)


def group(name: str, index: int, run_ms: float, **others: Any) -> GroupPlayed:
    members: dict[str, Any] = {
        "tenant": index,
        "hold_ns": 0,
        "overhead_ns": 0,
        "switches": 0,
        "latencies_ns": np.empty(0, dtype=np.int64),
        "unfinished": 0,
        "exclusive_ns": None,
        "asked": None,
    }
    return GroupPlayed(name=name, index=index, run_ns=int(run_ms * MS), **(members | others))


def played(groups: Sequence[GroupPlayed], stays: Any, *, seed: int = 1, start_ms: int = 0, idle_ms: int = 0) -> Played:
    return Played(
        seed=seed,
        schedule_hash=f"{seed:016x}",
        start_ns=start_ms * MS,
        end_ns=100 * MS,
        idle_ns=idle_ms * MS,
        decisions=10,
        switches=4,
        groups=list(groups),
        runs=stays,
    )


def means(found: Report, name: str) -> dict[str, float]:
    tenant = next(one for one in found.tenants if one.name == name)
    return {key: figure.mean for key, figure in tenant.figures.items()}


# 40 ms blue, 20 ms green, 35 ms blue, 5 ms green.
STAYS = runs((0, 40, 0), (40, 20, 1), (60, 35, 0), (95, 5, 1))


def test_shares_errors_lags_and_the_longest_run_of_two_that_always_have_work() -> None:
    found = report(scenario(), [played([group("blue", 0, 75), group("green", 1, 25)], STAYS)])
    blue, green = means(found, "blue"), means(found, "green")
    assert (blue["entitled_share"], blue["obtained_share"]) == (0.75, 0.75)
    assert (green["entitled_share"], green["share_error"]) == (0.25, 0)
    # At 40 ms blue had 40 and was due 30; at 60 ms it had 40 and was due 45; at 95 ms 75 and 71.25.
    assert blue["worst_lag_ns"] == 10 * MS
    assert green["worst_lag_ns"] == 10 * MS
    assert (blue["longest_run_ns"], green["longest_run_ns"]) == (40 * MS, 20 * MS)
    assert found.engine["jain_index"].mean == 1
    assert found.tenants[0].exact


def test_an_unfair_outcome_has_its_error_and_its_jain_index() -> None:
    stays = runs((0, 50, 0), (50, 50, 1))
    found = report(scenario(), [played([group("blue", 0, 50), group("green", 1, 50)], stays)])
    assert means(found, "blue")["share_error"] == pytest.approx(-1 / 3)
    assert means(found, "green")["share_error"] == pytest.approx(1)
    # Parts 2/3 and 2: (8/3)^2 / (2 * (4/9 + 4)).
    assert found.engine["jain_index"].mean == pytest.approx(0.8)


def test_what_a_cap_leaves_goes_to_the_others() -> None:
    due = Due(scenario(limit="cap: 10%, "), {})
    assert due.share("green", 0, 100 * MS) == 0.1
    assert due.share("blue", 0, 100 * MS) == 0.9


def test_changes_starts_and_leaves_change_what_is_due_from_their_moment_on() -> None:
    text = "changes: [{at: 20ms, tenant: green, weight: 3}]"
    due = Due(scenario(more=text, limit="starts: 10ms, leaves: 60ms, "), {})
    # Blue is due all of 10 ms, three quarters of the next 10, half of 40 and all of the last 40.
    assert due.share("blue", 0, 100 * MS) == pytest.approx(0.775)
    assert due.share("green", 0, 100 * MS) == pytest.approx(0.225)
    assert due.share("green", 60 * MS, 100 * MS) == 0


def asked(*requests: tuple[float, float]) -> Any:
    """Arrivals and work in ms."""
    return tuple((np.array(requests) * MS).astype(np.int64).T)


def test_who_has_requests_is_due_a_part_until_an_ideal_engine_is_done_with_them() -> None:
    # At a quarter, 5 ms take 20 ms. The second arrives at 50; 4 ms of a third arrive while it is under way.
    due = Due(scenario(workload="model: resnet50-inference"), {"green": asked((10, 5), (50, 1), (52, 4))})
    assert due.at_ns.tolist() == [0, 10 * MS, 30 * MS, 50 * MS, 70 * MS, 100 * MS]
    assert due.share("green", 0, 100 * MS) == pytest.approx(0.1)
    assert due.share("blue", 0, 100 * MS) == pytest.approx(0.9)
    assert not due.exact


def test_work_goes_on_at_another_rate_after_a_change_and_ends_when_its_tenant_leaves() -> None:
    text = "changes: [{at: 20ms, tenant: green, weight: 3}]"
    model = scenario(more=text, limit="leaves: 60ms, ", workload="model: resnet50-inference")
    # 2.5 ms until 20 ms; the rest of 7.5 ms takes 15 ms at half. Of the next 90 only 5 ms are done.
    due = Due(model, {"green": asked((10, 10), (50, 90))})
    assert due.at_ns.tolist() == [0, 10 * MS, 20 * MS, 35 * MS, 50 * MS, 60 * MS, 100 * MS]
    assert due.share("green", 0, 100 * MS) == pytest.approx(0.15)
    assert due.share("blue", 0, 100 * MS) == pytest.approx(0.85)


def test_many_equal_ones_are_due_the_same_as_one_by_one() -> None:
    text = "duration: 100ms\ntenants: [{name: a, weight: 2, workload: {backlog: {items: 1ms}}},"
    text += " {name: b, count: 200, cap: 0.1%, workload: {model: resnet50-inference}}]"
    due = Due(read(text, "a.yaml").scenario, {f"b-{number + 1}": asked((0, 50)) for number in range(200)})
    assert due.share("b-7", 0, 100 * MS) == pytest.approx(0.001)
    assert due.share("a", 0, 100 * MS) == pytest.approx(0.8)


def test_who_asks_for_less_than_its_share_is_due_what_it_asks_for() -> None:
    requests = {"green": asked(*[(at, 0.2) for at in range(100)])}
    due = Due(scenario(workload="model: resnet50-inference"), requests)
    assert due.share("green", 0, 100 * MS) == pytest.approx(0.2)
    assert due.share("blue", 0, 100 * MS) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("scheduler", "blue", "green"),
    [("policy: equal_share", Fraction(1, 3), Fraction(2, 3)), ("policy: fixed_share, places: 5", 0.2, 0.4)],
)
def test_policies_of_places_go_by_slices_and_give_nothing_away(scheduler: str, blue: float, green: float) -> None:
    model = scenario(more=f"scheduler: {{{scheduler}}}", limit="slices: 2, ", workload="model: resnet50-inference")
    found = Due(model, {"green": asked((0, 50 * float(green)))})
    assert found.share("blue", 0, 100 * MS) == pytest.approx(float(blue))
    assert found.share("green", 0, 50 * MS) == pytest.approx(float(green))
    assert found.share("green", 50 * MS, 100 * MS) == 0


def test_a_warm_up_is_left_out_but_lag_counts_from_the_beginning() -> None:
    late = played([group("blue", 0, 35), group("green", 1, 5)], STAYS, start_ms=60)
    found = report(scenario(more="warm_up: 60ms"), [late])
    assert means(found, "blue")["obtained_share"] == pytest.approx(35 / 40)
    assert means(found, "blue")["longest_run_ns"] == 35 * MS
    assert means(found, "blue")["worst_lag_ns"] == 5 * MS


def test_slices_that_take_turns_make_one_run_of_their_group() -> None:
    stays = runs((0, 1, 0), (1, 1, 0), (2, 1, 0), reason=figures.SAME_GROUP)
    stays["reason"][1] = 0
    assert figures.Stays(stays).longest_ns(0, 0) == 2 * MS
    stays["reason"] = 0
    assert figures.Stays(stays).longest_ns(0, 0) == MS
    assert figures.Stays(stays).longest_ns(9, 0) == 0


def with_requests(
    latencies_ms: Sequence[float], alone_ms: Sequence[float], unfinished: int = 0, offered_ms: float = 20
) -> Report:
    green = group(
        "green",
        1,
        25,
        latencies_ns=(np.array(latencies_ms) * MS).astype(np.int64),
        exclusive_ns=(np.array(alone_ms) * MS).astype(np.int64),
        asked=asked((0, 100)),
        unfinished=unfinished,
        offered_ns=int(offered_ms * MS),
    )
    targets = "targets: [{tenant: green, p99: 4ms, slowdown_mean: 2}, {share: 20%}, {mean: 2ms}]"
    model = scenario(more=targets, workload="model: resnet50-inference")
    return report(model, [played([group("blue", 0, 75), green], STAYS)])


def test_latencies_stand_beside_those_of_an_engine_of_its_own() -> None:
    found = with_requests([1, 2, 3, 4], [1, 1, 1, 1])
    green = means(found, "green")
    assert green["requests"] == 4
    assert green["latency_mean_ns"] == 2.5 * MS
    assert green["latency_p50_ns"] == 2.5 * MS
    assert green["latency_p99_ns"] == pytest.approx(3.97 * MS)
    assert green["slowdown_mean"] == 2.5
    assert green["slowdown_p99"] == pytest.approx(3.97)
    assert green["requests_per_s"] == 40
    assert "share_error" not in green
    assert "latency_mean_ns" not in means(found, "blue")


def test_targets_are_met_or_missed_with_the_value_and_a_star_passes_over_who_has_no_such_figure() -> None:
    found = with_requests([1, 2, 3, 4], [1, 1, 1, 1])
    assert [(one.tenant, one.target, one.met) for one in found.verdicts] == [
        ("green", "p99", True),
        ("green", "slowdown_mean", False),
        ("blue", "share", True),
        ("green", "share", True),
        ("green", "mean", False),
    ]
    assert not found.met
    assert str(found.verdicts[1]) == "green: slowdown_mean 2.500x, wanted <= 2.000x"


def test_how_long_requests_take_is_not_known_while_many_are_not_done() -> None:
    assert with_requests([1, 1, 1, 1], [1] * 4, unfinished=1).met
    late = with_requests([1, 1, 1, 1], [1] * 4, unfinished=2)
    assert [(one.target, one.value, one.met) for one in late.verdicts] == [
        ("p99", None, False),
        ("slowdown_mean", None, False),
        ("share", 0.75, True),
        ("share", 0.25, True),
        ("mean", None, False),
    ]
    assert str(late.verdicts[0]) == "green: p99 unknown, wanted <= 4ms: 2 of 6 requests were not done at the end"


def test_one_copy_that_starves_is_not_hidden_by_the_others() -> None:
    text = "duration: 100ms\nseeds: 1\ntargets: [{mean: 1s}]\ntenants:"
    text += " [{name: a, count: 100, workload: {model: resnet50-inference}}]"
    copies = [
        group(
            f"a-{number + 1}",
            number,
            1,
            tenant=0,
            latencies_ns=np.full(1 if number == 7 else 500, MS),
            unfinished=3 if number == 7 else 0,
            exclusive_ns=np.full(500, MS),
            asked=asked((0, 1)),
        )
        for number in range(100)
    ]
    found = report(read(text, "a.yaml").scenario, [played(copies, runs((0, 1, 0)))])
    assert found.verdicts[0].reason == "3 of 4 requests were not done at the end"
    assert latency_rows(found)[0][2] == "495+0.1"


def test_who_asks_for_more_than_its_due_is_named_with_both() -> None:
    line = next(note for note in notes(with_requests([1] * 4, [1] * 4, 9, offered_ms=60)) if "asks for" in note)
    # Green has 100 ms of work from the first moment on, so a quarter of the engine is due to it.
    assert line.startswith("green asks for 60.0% of the engine and is entitled to 25.0%: its queue grows")
    assert not [note for note in notes(with_requests([1] * 4, [1] * 4, 9, offered_ms=26)) if "asks for" in note]
    assert not [note for note in notes(with_requests([1] * 4, [1] * 4, 0, offered_ms=60)) if "asks for" in note]


def test_a_p99_of_few_requests_is_called_one() -> None:
    assert any(note.startswith("green has 99 requests in a seed") for note in notes(with_requests([1] * 99, [1] * 99)))
    assert not any("requests in a seed" in note for note in notes(with_requests([1] * 100, [1] * 100)))


def test_the_same_schedule_of_all_seeds_is_said_without_a_cause() -> None:
    once = played([group("blue", 0, 75), group("green", 1, 25)], STAYS)
    said = notes(report(scenario(seeds=2), [once, once]))
    assert "every seed gave the same schedule, so more seeds show nothing new" in said
    other = played([group("blue", 0, 75), group("green", 1, 25)], STAYS, seed=2)
    told = notes(report(scenario(), [once, other]))
    assert "tables show the mean over the seeds; targets are judged by the worst seed" in told


def test_a_target_without_its_figure_is_missed() -> None:
    found = with_requests([], [])
    assert (found.verdicts[0].value, found.verdicts[0].met) == (None, False)
    assert str(found.verdicts[0]) == "green: p99 unknown, wanted <= 4ms: a seed has no request that was done"


def test_seeds_give_a_mean_and_students_interval() -> None:
    figure = figures.over_seeds([1.0, 2.0, 3.0, 4.0, 5.0])
    assert figure.mean == 3
    # 2.776 * sqrt(2.5) / sqrt(5)
    assert list(figure.interval or ()) == pytest.approx([3 - 1.9629, 3 + 1.9629], abs=1e-3)
    assert figures.over_seeds([4.0]).interval is None


def test_of_several_copies_the_worst_or_the_mean_is_reported() -> None:
    assert figures.over_copies("share_error", [0.1, -0.3]) == -0.3
    assert figures.over_copies("latency_p99_ns", [1.0, 5.0]) == 5
    assert figures.over_copies("latency_mean_ns", [1.0, 5.0]) == 3
    assert figures.over_copies("unfinished", [1.0, 5.0]) == 3


def test_json_has_the_documented_keys_and_tables_have_a_row_for_each_tenant() -> None:
    found = with_requests([1, 2, 3, 4], [1, 1, 1, 1])
    content = json.loads(json.dumps(to_json(found)))
    assert content["format"] == "vgpumgr.simulation/1"
    assert list(content) == [
        "format",
        "title",
        "engine_model",
        "scheduler",
        "duration_ns",
        "warm_up_ns",
        "seeds",
        "schedule_hashes",
        "engine",
        "tenants",
        "targets",
        "met",
    ]
    assert content["tenants"][1]["figures"]["latency_mean_ns"] == {
        "mean": 2_500_000,
        "interval_95": None,
        "by_seed": [2_500_000],
    }
    assert share_rows(found)[0][:3] == ("blue", "75.0%~", "75.0%")
    assert latency_rows(found) == [
        ("green", "20.0%", "4", "2.5ms", "2.5ms", "3.97ms", "4ms", "1ms", "1ms", "2.500x", "3.970x"),
    ]
    assert any("one seed" in note for note in notes(found))
