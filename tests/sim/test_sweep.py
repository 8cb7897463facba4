# SPDX-License-Identifier: Apache-2.0
"""How the points of a sweep are made and ranked, tested with made-up reports."""

from typing import Any

import pytest

from vgpumgr.errors import ScenarioError
from vgpumgr.sim.figures import over_seeds
from vgpumgr.sim.report import Report, TenantReport, Verdict
from vgpumgr.sim.scenario import read
from vgpumgr.sim.sweep import Axis, Point, axes_of, overloads_of, sweep, to_json

SCENARIO = read("duration: 1s\ntenants: [{name: a, workload: {backlog: {items: 1ms}}}]", "a.yaml").scenario


def outcome(*, missed: int, error: float, switches: float, value: float | None = 2.0) -> Report:
    verdicts = [Verdict("a", "p99", 1.0, value, met=False)] * missed
    verdicts.append(Verdict("a", "mean", 1.0, 0.5, met=True))
    tenant = TenantReport("a", 1, exact=True, figures={"share_error": over_seeds([error, error / 2])})
    engine = {"switches_per_s": over_seeds([switches])}
    return Report(SCENARIO, (1,), ("0",), engine, [tenant], verdicts)


def test_targets_come_before_share_error_and_that_before_switches() -> None:
    made = {
        "1": outcome(missed=1, error=0.0, switches=1),
        "2": outcome(missed=0, error=-0.2, switches=1),
        "3": outcome(missed=0, error=0.102, switches=9),
        "4": outcome(missed=0, error=0.104, switches=5),
        "5": outcome(missed=2, error=0.0, switches=1),
        "6": outcome(missed=1, error=0.0, switches=1, value=None),
        "7": outcome(missed=1, error=0.5, switches=9, value=1.1),
    }

    def simulate(settings: list[str], _: Any) -> Report:
        if settings == ["x=8"]:
            raise ScenarioError("no")
        return made[settings[0].removeprefix("x=")]

    points = sweep([Axis("x", tuple("12345678"))], simulate)
    assert [point.values[0] for point in points] == ["4", "3", "2", "7", "1", "6", "5", "8"]
    assert points[-1].missed == points[-1].targets == ["no"]
    assert points[2].share_error == 0.2
    assert points[3].targets == ["missed a: p99 1ns, wanted <= 1ns", "met a: mean 0ns, wanted <= 1ns"]
    content = to_json([Axis("x", ())], points)
    assert [point["met"] for point in content["points"]] == [True] * 3 + [False] * 5
    assert content["points"][-1]["simulation"] is None


@pytest.mark.parametrize(
    ("target", "value", "excess"), [("p99", 3.0, 0.5), ("share_error", -4.0, 1.0), ("share", 0.5, 3.0)]
)
def test_a_miss_is_measured_by_its_bound(target: str, value: float, excess: float) -> None:
    assert Verdict("a", target, 2.0, value, met=False).excess == excess
    assert Verdict("a", target, 2.0, value, met=True).excess == 0


def test_who_asks_for_too_much_in_every_point_is_named_once() -> None:
    def point(name: str, *, undone: tuple[int, int] | None) -> Point:
        figures = {"offered_share": over_seeds([0.3]), "entitled_share": over_seeds([0.1])}
        tenants = [TenantReport(name, 1, exact=False, figures=figures, undone=undone)]
        return Point((), Report(SCENARIO, (1,), ("0",), {}, tenants, []))

    over, well = point("a", undone=(9, 10)), point("a", undone=None)
    assert [line[:35] for line in overloads_of([over, over, Point((), None, "no")])] == [
        "a asks for 30.0% of the engine and "
    ]
    assert overloads_of([over, well]) == []


def test_a_comma_inside_brackets_belongs_to_the_value() -> None:
    assert axes_of(["scheduler={policy: fixed_share, places: 4},{}", "a.b=[1,2], 3"]) == [
        Axis("scheduler", ("{policy: fixed_share, places: 4}", "{}")),
        Axis("a.b", ("[1,2]", "3")),
    ]


def test_every_combination_is_played_and_progress_goes_from_0_to_1() -> None:
    seen: list[list[str]] = []
    told: list[float] = []

    def simulate(settings: list[str], progress: Any) -> Report:
        seen.append(settings)
        progress(1.0)
        return outcome(missed=0, error=0.0, switches=1)

    sweep(axes_of(["a=1,2", "b=3,4"]), simulate, told.append)
    assert seen == [["a=1", "b=3"], ["a=1", "b=4"], ["a=2", "b=3"], ["a=2", "b=4"]]
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_if_nothing_can_be_played_every_reason_is_told_once() -> None:
    def refuse(_: list[str], __: Any) -> Report:
        raise ScenarioError("never")

    with pytest.raises(ScenarioError) as caught:
        sweep([Axis("x", ("1", "2"))], refuse)
    assert caught.value.problems == ("never",)
