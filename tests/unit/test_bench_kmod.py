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
    MARGIN_NS,
    MAX_CHUNK_NS,
    MS,
    SIZES,
    TIMESLICE_NS,
    URGENT_US,
    US,
    Stay,
    lag_spread_ns,
    members,
)
from tests.bench.kmod.workload import worst_spread_ns as worst


def turns(*names: str, ms: int = 1, begin_ns: int = 0) -> list[Stay]:
    return [Stay(name, begin_ns + number * ms * MS, ms * MS) for number, name in enumerate(names)]


def test_equal_turns_move_a_lag_by_what_one_turn_is_too_much() -> None:
    assert lag_spread_ns(turns(*"abababab"), {"a": 1, "b": 1}, 0, 8 * MS) == MS / 2
    assert lag_spread_ns(turns(*"aaabaaab"), {"a": 3, "b": 1}, 0, 8 * MS) == MS * 3 / 4


def test_an_unfair_half_shows_whoever_it_favours() -> None:
    """Shares are right in the end and were wrong meanwhile."""
    assert lag_spread_ns(turns(*"aaaabbbb"), {"a": 1, "b": 1}, 0, 8 * MS) == 2 * MS
    assert lag_spread_ns(turns(*"aaaaaaaa"), {"a": 1, "b": 1}, 0, 8 * MS) == 4 * MS


def test_stays_across_an_edge_do_not_count_and_strangers_are_an_error() -> None:
    assert lag_spread_ns(turns(*"aaaabb"), {"a": 1, "b": 1}, 3 * MS, 6 * MS) == MS
    with pytest.raises(ValueError, match="c ran"):
        lag_spread_ns(turns(*"abc"), {"a": 1, "b": 1}, 0, 3 * MS)


@pytest.mark.parametrize("size", SIZES)
def test_the_played_tenants_leave_join_and_change(size: int) -> None:
    played = members(size)
    assert len(played) == size + 2
    assert {sum(1 for one in played if one.weights[epoch]) for epoch in range(4)} == {size, size + 1}
    assert played[0].weights[3] == 2 * played[0].weights[2]
    nobody_else = [stay for epoch in range(4) for stay in turns("t0", ms=50, begin_ns=epoch * EPOCH_NS + 2 * MARGIN_NS)]
    assert 0 < worst(nobody_else, played) < BOUND_NS * 3


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
    wait_ns = (URGENT_US + CHUNK_US) * US + bench.DECISION_NS
    waits = {f"priority {band}": dict.fromkeys(("p50_ns", "p99_ns", "max_ns"), wait_ns) for band in ("latency", "fair")}
    ours = shares | costs | waits | {"idle": {"wakeups": 0}, "engine": "soft", "kernel": "6.12"}
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
