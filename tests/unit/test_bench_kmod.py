# SPDX-License-Identifier: Apache-2.0
"""How `make bench-kmod` computes the fairness figure, when it fails, and what its baselines replace."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.kmod import __main__ as bench
from tests.bench.kmod.lag import furthest, lags
from tests.bench.kmod.modules import BASELINES, OURS, PICKERS, ROOT
from tests.bench.kmod.workload import (
    BATCHES,
    BOUND_NS,
    CHUNK_US,
    MAX_CHUNK_NS,
    MS,
    SIZES,
    TIMESLICE_NS,
    URGENT_US,
    US,
    Change,
    Stay,
    members,
    work,
)


def turns(names: str, *, ms: int = 1, begin_ns: int = 0) -> list[Stay]:
    return [Stay(name, begin_ns + number * ms * MS, ms * MS) for number, name in enumerate(names)]


def backlogged(**weights: int) -> list[Change]:
    return [Change(time_ns=0, name=name, weight=weight, has_work=True) for name, weight in weights.items()]


def worst_ms(stays: list[Stay], changes: list[Change]) -> float:
    return furthest(lags(stays, changes))[0] / MS


def last_ms(stays: list[Stay], changes: list[Change]) -> dict[str, float]:
    """Return the lags at the end, with timeslices of 2 ms."""
    return {name: float(lag / MS) for name, lag in list(lags(stays, changes, timeslice_ns=2 * MS))[-1].items()}


def test_equal_turns_owe_at_most_what_one_turn_is_too_much() -> None:
    assert worst_ms(turns("abababab"), backlogged(a=1, b=1)) == 1 / 2
    assert worst_ms(turns("aaabaaab"), backlogged(a=3, b=1)) == 3 / 4


def test_an_unfair_half_shows_whoever_it_favours() -> None:
    """The shares are right at the end but were wrong in between."""
    assert worst_ms(turns("aaaabbbb"), backlogged(a=1, b=1)) == 2
    assert worst_ms(turns("aaaaaaaa"), backlogged(a=1, b=1)) == 4


def test_a_lag_counts_from_zero_and_not_from_where_it_was_furthest_the_other_way() -> None:
    assert furthest(lags(turns("aaaabbbbbbbbaaaa"), backlogged(a=1, b=1))) == (2 * MS, 4 * MS)


@pytest.mark.parametrize(("made_ms", "credit_ms"), [(8, 0), (7, 1 / 2), (6, 1), (0, 1)])
def test_who_joins_has_credit_for_what_it_slept_but_no_more_than_a_timeslice(made_ms: int, credit_ms: float) -> None:
    """With two of four parts, c keeps half of its credit; a and b owe the credit."""
    joining = [
        Change(time_ns=made_ms * MS, name="c", weight=2),
        Change(time_ns=8 * MS, name="c", has_work=True),
        Change(time_ns=9 * MS, name="c", weight=2),  # only to read the lags before a tenant runs
    ]
    found = list(lags([*turns("abababab"), Stay("a", 9 * MS, MS)], backlogged(a=1, b=1) + joining, timeslice_ns=2 * MS))
    assert found[-2] == {"a": -credit_ms * MS / 2, "b": -credit_ms * MS / 2, "c": credit_ms * MS}


def test_who_has_no_more_work_stays_in_the_average_until_its_debt_is_paid() -> None:
    changes = [*backlogged(a=1, b=1, c=2), Change(time_ns=2 * MS, name="c", has_work=False)]
    assert last_ms(turns("cc"), changes) == {"a": 1 / 2, "b": 1 / 2, "c": -1}
    assert last_ms(turns("cca"), changes) == {"a": -1 / 4, "b": 3 / 4, "c": -1 / 2}
    assert last_ms(turns("ccab"), changes) == {"a": 0, "b": 0}
    assert last_ms(turns("ccaba"), changes) == {"a": -1 / 2, "b": 1 / 2}


def test_who_leaves_with_credit_leaves_it_to_who_gave_it() -> None:
    changes = [*backlogged(a=1, b=1, c=2), Change(time_ns=2 * MS, name="c", has_work=False)]
    assert last_ms(turns("ab"), changes) == {"a": -1 / 2, "b": -1 / 2, "c": 1}
    assert last_ms(turns("aba"), changes) == {"a": -1 / 2, "b": 1 / 2}


def test_the_debt_of_who_is_gone_for_good_is_owed_to_nobody() -> None:
    changes = [*backlogged(a=1, b=1, c=2), Change(time_ns=2 * MS, name="c", weight=0)]
    assert last_ms(turns("cca"), changes) == {"a": -1 / 2, "b": 1 / 2}


def test_a_new_weight_keeps_the_lag_and_counts_from_then_on() -> None:
    changes = [*backlogged(a=1, b=1), Change(time_ns=2 * MS, name="b", weight=3)]
    expected = {"a": -1 - 2 * 3 / 4, "b": 1 + 2 * 3 / 4}
    assert last_ms(turns("aa", ms=2), changes) == expected
    assert last_ms(turns("a", ms=4), changes) == expected, "in the middle of a stay"


def test_who_runs_without_work_or_when_it_is_not_there_is_an_error() -> None:
    for changes in (backlogged(a=1, b=1), [*backlogged(a=1, b=1), Change(time_ns=0, name="c", weight=1)]):
        with pytest.raises(ValueError, match="c ran"):
            list(lags(turns("abc"), changes))


def test_who_gets_work_has_had_none_since_its_last_stay() -> None:
    """The exceptions are work that came while the tenant still ran, and its first work."""
    stays = turns("abab")
    assert work(stays, [("a", 0), ("b", MS // 2), ("a", MS * 5 // 2), ("b", 3 * MS), ("a", MS * 7 // 2)]) == [
        Change(time_ns=0, name="a", has_work=True),
        Change(time_ns=MS // 2, name="b", has_work=True),
        Change(time_ns=2 * MS, name="b", has_work=False),
        Change(time_ns=3 * MS, name="b", has_work=True),
        Change(time_ns=3 * MS, name="a", has_work=False),
        Change(time_ns=MS * 7 // 2, name="a", has_work=True),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_the_played_tenants_leave_join_and_change(size: int) -> None:
    played = members(size)
    assert len(played) == size + 2
    there = [{one.name: one.weights[epoch] for one in played if one.weights[epoch]} for epoch in range(4)]
    assert [len(weights) for weights in there] == [size + 1, size, size + 1, size + 1]
    assert there[3]["t0"] == 2 * there[2]["t0"]


@pytest.mark.parametrize("key", BASELINES)
def test_a_baseline_defines_what_it_replaces_in_the_core(key: str) -> None:
    sources = [PICKERS / f"{source}.c" for source in BASELINES[key].sources]
    text = "".join(source.read_text() for source in sources)
    for file, function in BASELINES[key].replaced:
        core = (ROOT / f"kmod/sched/{file}.c").read_text()
        for definition in (core, text):
            assert f" {function}(" in definition or f"*{function}(" in definition
    command = ("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT / 'kmod/sched'}")
    subprocess.run((*command, *sources), check=True)


def measured_at_every_limit() -> dict[str, Any]:
    """Return the measurements of a lab host whose module just meets every target."""
    shares = {
        f"fairness {size}": {
            "worst_lag_ns": BOUND_NS,
            "worst_spread_ns": 2 * BOUND_NS,
            "longest_run_ns": TIMESLICE_NS + MAX_CHUNK_NS,
            "runs": 1000,
            "idle_permille": 0,
            "lengths": {},
        }
        for size in SIZES
    }
    costs = {
        f"cost {batch}": {
            "engine": bench.INSTRUCTIONS_MAX[batch] - 1000,
            "worker": 1000,
            "items_per_s": 50_000,
            "doorbells": 1 / batch,
            "interrupts": 0,
        }
        for batch in BATCHES
    }
    trapped = {f"traps {batch}": {"per_item": 1 / batch} for batch in BATCHES}
    wait_ns = (URGENT_US + CHUNK_US) * US + bench.DECISION_NS
    waits = {f"priority {band}": dict.fromkeys(("p50_ns", "p99_ns", "max_ns"), wait_ns) for band in ("latency", "fair")}
    ours = shares | costs | waits | trapped | {"idle": {"wakeups": 0}, "engine": "soft", "kernel": "6.12"}
    return {OURS: ours, "seconds": 0} | dict.fromkeys(BASELINES, shares)


def judged(found: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit status of `make bench-kmod BENCH=--strict` with these measurements."""
    monkeypatch.setattr(bench, "OUTPUT", folder / "kmod.json")
    measured = folder / "measured.json"
    measured.write_text(json.dumps(found))
    return bench.main(["--strict", "--measured", str(measured)])


def test_a_module_at_every_limit_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(measured_at_every_limit(), tmp_path, monkeypatch) == 0


@pytest.mark.parametrize(
    ("part", "figure"),
    [
        *((f"fairness {size}", figure) for size in SIZES for figure in ("worst_lag_ns", "longest_run_ns")),
        *((f"cost {batch}", figure) for batch in BATCHES for figure in ("engine", "worker", "doorbells")),
        *((f"traps {batch}", "per_item") for batch in BATCHES),
        ("idle", "wakeups"),
        ("priority latency", "max_ns"),
    ],
)
def test_a_figure_just_beyond_its_limit_fails_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, figure: str
) -> None:
    found = measured_at_every_limit()
    found[OURS][part] = found[OURS][part] | {figure: found[OURS][part][figure] + 1}
    assert judged(found, tmp_path, monkeypatch) == 1
