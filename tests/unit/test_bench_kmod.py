# SPDX-License-Identifier: Apache-2.0
"""How `make bench-kmod` computes the one figure that says whether shares are right, what it fails for, and what its
baselines replace."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bench.kmod import __main__ as bench
from tests.bench.kmod.modules import BASELINES, OURS, PICKERS, ROOT
from tests.bench.kmod.workload import (
    BATCHES,
    BOUND_NS,
    CHUNK_US,
    EPOCH_NS,
    MAX_CHUNK_NS,
    MS,
    SIZES,
    TIMESLICE_NS,
    URGENT_US,
    US,
    Change,
    Stay,
    changes,
    lag_spread_ns,
    members,
)


def turns(*names: str, ms: int = 1, begin_ns: int = 0) -> list[Stay]:
    return [Stay(name, begin_ns + number * ms * MS, ms * MS) for number, name in enumerate(names)]


def alone(**weights: int) -> list[Change]:
    return [Change(0, weights)]


def test_equal_turns_move_a_lag_by_what_one_turn_is_too_much() -> None:
    assert lag_spread_ns(turns(*"abababab"), alone(a=1, b=1)) == MS / 2
    assert lag_spread_ns(turns(*"aaabaaab"), alone(a=3, b=1)) == MS * 3 / 4


def test_an_unfair_half_shows_whoever_it_favours() -> None:
    """Shares are right in the end and were wrong meanwhile."""
    assert lag_spread_ns(turns(*"aaaabbbb"), alone(a=1, b=1)) == 2 * MS
    assert lag_spread_ns(turns(*"aaaaaaaa"), alone(a=1, b=1)) == 4 * MS


def test_a_lag_is_carried_across_changes() -> None:
    reweighted = [Change(0, {"a": 1, "b": 1}), Change(2 * MS, {"a": 1, "b": 3})]
    assert lag_spread_ns(turns(*"aaaa"), reweighted) == MS * (2 * 1 / 2 + 2 * 3 / 4)
    left = [Change(0, {"a": 1, "b": 1, "c": 2}), Change(4 * MS, {"a": 1, "b": 1})]
    assert lag_spread_ns(turns(*"ccaaaa"), left) == MS * (2 * 3 / 4 + 2 * 1 / 2)


def test_a_stay_across_a_change_counts_for_both_sides_of_it() -> None:
    """The second of these two milliseconds is a third b's and not half."""
    assert lag_spread_ns(turns("a", ms=2), [Change(0, {"a": 1, "b": 1}), Change(MS, {"a": 2, "b": 1})]) == round(
        MS * 5 / 6
    )


def test_who_runs_when_it_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="c ran"):
        lag_spread_ns(turns(*"abc"), alone(a=1, b=1))


@pytest.mark.parametrize("size", SIZES)
def test_the_played_tenants_leave_join_and_change(size: int) -> None:
    played = members(size)
    assert len(played) == size + 2
    there = changes(played, [epoch * EPOCH_NS for epoch in range(4)])
    assert [len(change.weights) for change in there] == [size + 1, size, size + 1, size + 1]
    assert there[3].weights["t0"] == 2 * there[2].weights["t0"]


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
    """What a lab host would have left if the module only just did what it must."""
    shares = {
        f"fairness {size}": {
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
    """The exit status of `make bench-kmod BENCH=--strict` that has measured this."""
    monkeypatch.setattr(bench, "OUTPUT", folder / "kmod.json")
    measured = folder / "measured.json"
    measured.write_text(json.dumps(found))
    return bench.main(["--strict", "--measured", str(measured)])


def test_a_module_at_every_limit_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(measured_at_every_limit(), tmp_path, monkeypatch) == 0


@pytest.mark.parametrize(
    ("part", "figure"),
    [
        *((f"fairness {size}", figure) for size in SIZES for figure in ("worst_spread_ns", "longest_run_ns")),
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
