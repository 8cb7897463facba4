# SPDX-License-Identifier: Apache-2.0
"""`top`: windows between reports, entitlement among active tenants, and the end of the loop."""

import json
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import MADE, usage_of
from vgpumgr.cli.usage_window import Row, Samples, rows
from vgpumgr.wire.resources import Usage

S = 1_000_000_000


def at(seconds: int, tenant: str, **counters: Any) -> Usage:
    common: dict[str, Any] = {"wall_ns": seconds * S, "reported_at": MADE + timedelta(seconds=seconds)}
    return usage_of(tenant, **(common | counters))


def by_tenant(found: list[Row]) -> dict[str, tuple[Fraction | None, Fraction | None]]:
    return {row.tenant: (row.entitled_share, row.obtained_share) for row in found}


def test_shares_are_by_weight_among_those_who_ran() -> None:
    before = [at(0, name) for name in ("blue", "green", "idle")]
    after = [
        at(10, "blue", weight=300, run_ns=7 * S),
        at(10, "green", weight=100, run_ns=3 * S),
        at(10, "idle", weight=600),
    ]
    assert by_tenant(rows(before, after)) == {
        "blue": (Fraction(3, 4), Fraction(7, 10)),
        "green": (Fraction(1, 4), Fraction(3, 10)),
        "idle": (None, Fraction(0)),
    }


def test_a_cap_bounds_what_is_due_and_the_rest_goes_to_the_others() -> None:
    before = [at(0, "blue"), at(0, "green")]
    after = [
        at(10, "blue", weight=300, run_ns=2 * S, cap_us=2000, cap_period_us=10_000),
        at(10, "green", weight=100, run_ns=8 * S),
    ]
    assert by_tenant(rows(before, after))["blue"][0] == Fraction(1, 5)
    assert by_tenant(rows(before, after))["green"][0] == Fraction(4, 5)


def test_who_was_held_back_by_a_cap_is_entitled_without_having_run() -> None:
    before = [at(0, "blue"), at(0, "green")]
    after = [
        at(10, "blue", throttled_ns=S, cap_us=1000, cap_period_us=10_000),
        at(10, "green", run_ns=S),
    ]
    assert by_tenant(rows(before, after))["blue"] == (Fraction(1, 10), Fraction(0))


@pytest.mark.parametrize("first", [[], [at(10, "blue")], [at(20, "blue")], [at(0, "blue", run_ns=9 * S)]])
def test_without_two_reports_of_the_same_group_there_are_no_figures(first: list[Usage]) -> None:
    assert by_tenant(rows(first, [at(10, "blue", run_ns=S)])) == {"blue": (None, None)}


def test_a_group_without_weight_is_not_entitled() -> None:
    after = [at(10, "blue", weight=0, run_ns=S)]
    assert by_tenant(rows([at(0, "blue")], after)) == {"blue": (None, Fraction(1, 10))}


def test_rates_are_by_the_gpus_own_clock() -> None:
    (row,) = rows([at(0, "blue")], [at(4, "blue", run_ns=S, runs=8, switches=2)])
    assert (row.runs_per_s, row.switches_per_s, row.window_ns) == (Fraction(2), Fraction(1, 2), 4 * S)


def test_a_gpu_that_has_not_reported_since_keeps_its_window() -> None:
    samples = Samples()
    samples.add([at(0, "blue")])
    completed = [samples.complete(samples.after)]
    samples.add([at(10, "blue", run_ns=5 * S)])
    samples.add([at(10, "blue", run_ns=5 * S)])
    completed.append(samples.complete(samples.after))
    assert completed == [False, True]
    assert samples.rows()[0].obtained_share == Fraction(1, 2)
    samples.add([at(20, "blue", run_ns=5 * S)])
    assert samples.rows()[0].obtained_share == 0


def test_a_gpu_that_is_gone_is_forgotten() -> None:
    samples = Samples()
    samples.add([at(0, "blue")])
    samples.add([])
    assert samples.rows() == []
    assert samples.complete(samples.after)


def test_gpus_are_apart() -> None:
    samples = Samples()
    for seconds in (0, 10):
        samples.add(
            [
                at(seconds, "blue", run_ns=seconds * S // 2),
                at(seconds, "blue", gpu="0000:00:11.0", run_ns=seconds * S),
            ]
        )
    assert [(row.gpu, row.obtained_share, row.entitled_share) for row in samples.rows()] == [
        ("0000:00:10.0", Fraction(1, 2), Fraction(1)),
        ("0000:00:11.0", Fraction(1), Fraction(1)),
    ]


def test_once_gives_up_on_a_host_that_does_not_report(cli: Cli) -> None:
    cli.api.usage = [[at(0, "blue")]]
    result = cli("top", "--once", "--interval", "10")
    assert (result.status, sum(cli.slept_s)) == (0, 90)
    assert result.out.splitlines()[1].split()[5:7] == ["-", "-"]


def test_once_waits_for_counters_that_are_told_as_seldom_as_by_default(cli: Cli) -> None:
    cli.api.usage = [[at(0, "blue")]] * 8 + [[at(75, "blue", run_ns=75 * S)]]
    result = cli("top", "--once", "--interval", "10")
    assert (result.status, sum(cli.slept_s)) == (0, 80)
    assert result.out.splitlines()[1].split()[5:7] == ["100.0%", "100.0%"]


def test_so_many_tables_are_printed_each_once_there_is_something_new(cli: Cli) -> None:
    cli.api.usage = [[at(seconds, "blue", run_ns=seconds**2 * S // 100)] for seconds in (0, 0, 10, 10, 10, 20, 20, 30)]
    result = cli("top", "--count", "3", "--interval", "2")
    assert result.status == 0
    assert [line.split()[5:7] for line in result.out.splitlines() if line.startswith("blue")] == [
        ["100.0%", "10.0%"],
        ["100.0%", "30.0%"],
        ["100.0%", "50.0%"],
    ]
    assert result.out.count("TENANT") == 3
    assert len(cli.slept_s) == 7


def test_a_count_ends_without_reports_too(cli: Cli) -> None:
    cli.api.usage = [[at(0, "blue")], [at(10, "blue", run_ns=S)]]
    result = cli("top", "--count", "2", "--interval", "10", "-o", "json")
    assert (result.status, sum(cli.slept_s)) == (0, 100)
    assert [json.loads(line)[0]["obtained_share"] for line in result.out.splitlines()] == [0.1, 0.1]


def test_only_the_first_of_so_many_tables_waits_for_a_host_that_tells_nothing(cli: Cli) -> None:
    idle = at(0, "green", host="gpu-b")
    cli.api.usage = [[at(seconds, "blue", run_ns=seconds**2 * S // 1000), idle] for seconds in range(0, 200, 10)]
    result = cli("top", "--count", "3", "--interval", "10")
    assert (result.status, sum(cli.slept_s)) == (0, 110)
    assert [line.split()[5:7] for line in result.out.splitlines() if line.startswith(("blue", "green"))] == [
        ["100.0%", "17.0%"],
        ["-", "-"],
        ["100.0%", "19.0%"],
        ["-", "-"],
        ["100.0%", "21.0%"],
        ["-", "-"],
    ]


@pytest.mark.parametrize("tenant", ["blue", "nobody"])
def test_who_asks_about_a_tenant_does_not_wait_for_hosts_that_do_nothing_for_it(cli: Cli, tenant: str) -> None:
    idle = at(0, "green", host="gpu-b")
    cli.api.usage = [[at(seconds, "blue", run_ns=seconds * S // 2), idle] for seconds in (0, 10)]
    result = cli("top", "--once", "--tenant", tenant, "--interval", "10")
    assert (result.status, sum(cli.slept_s)) == (0, 10)
    assert [line.split()[5:7] for line in result.out.splitlines()[1:]] == [["100.0%", "50.0%"]] * (tenant == "blue")


def test_the_first_table_waits_for_all_and_the_next_repeats_what_was_not_told_again(cli: Cli) -> None:
    seldom = (0, 0, 0, 30, 30, 30)
    cli.api.usage = [
        [at(10 * n, "blue", run_ns=n**2 * S), at(told, "green", host="gpu-b", run_ns=told * S // 2)]
        for n, told in enumerate(seldom)
    ]
    result = cli("top", "--count", "2", "--interval", "10", "-o", "json")
    assert (result.status, sum(cli.slept_s)) == (0, 40)
    tables = [json.loads(line) for line in result.out.splitlines()]
    assert [[row["obtained_share"] for row in table] for table in tables] == [[0.5, 0.5], [0.7, 0.5]]


def test_once_is_a_count_of_its_own(cli: Cli) -> None:
    assert cli("top", "--once", "--count", "2").status == 2
    assert cli.api.requests == []


def test_filters_do_not_change_what_is_due(cli: Cli) -> None:
    cli.api.usage = [[at(seconds, name, run_ns=seconds * S // 2) for name in ("blue", "green")] for seconds in (0, 10)]
    result = cli("top", "--once", "--tenant", "blue", "--host", "gpu-a", "-o", "json")
    (row,) = json.loads(result.out)
    assert (row["tenant"], row["entitled_share"]) == ("blue", 0.5)
    assert all("host=gpu-a" in line and "tenant=" not in line for line in cli.api.seen())


def test_the_live_table_ends_with_ctrl_c_as_asked_and_changes_with_reports_only(cli: Cli) -> None:
    cli.api.usage = [[at(seconds, "blue", run_ns=seconds * S // 2)] for seconds in (0, 0, 0, 10, 10, 20, 20)]
    rounds = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) > 6:
            raise KeyboardInterrupt

    cli.session["sleep"] = sleep
    result = cli("top", "-o", "json")
    assert result.status == 0
    assert [json.loads(line)[0]["obtained_share"] for line in result.out.splitlines()] == [None, 0.5, 0.5]
