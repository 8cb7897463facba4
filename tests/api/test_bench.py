# SPDX-License-Identifier: Apache-2.0
"""A small `make bench-api`: it runs, and what it measured really happened. Its figures mean nothing.

The lane bench-api-long runs it in full size and checks its targets.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.cluster import Cluster
from tests.api.concurrency.audit import Audit
from tests.bench.api import fleet
from tests.bench.api.__main__ import EXPERIMENTS
from tests.bench.api.releases import STEPS

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = ("lists", "claims", "kinds", "releases", "bystander", "heartbeats", "watchers", "events")
TARGETS = {"claims": 2, "growth": 2, "kinds": 4, "bystander": 2, "heartbeats": 2, "events": 1}
"""The number of targets in each experiment."""


def measured(output: Path, *options: str, limit_s: int) -> Any:
    """Runs the benchmark; returns its output file."""
    command = [sys.executable, "-m", "tests.bench.api", *options, "--output", output]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(output.read_text())


def rows_of(document: Any) -> dict[str, Any]:
    return {
        name: row
        for result in document["experiments"].values()
        for table in result["figures"].values()
        for name, row in table.items()
    }


def unjudged(document: Any) -> list[str]:
    """Returns the skipped experiments, and those where a target lacks a figure or a verdict."""
    return [
        name
        for name, result in document["experiments"].items()
        if "skipped" in result
        or len(result["targets"]) != TARGETS.get(name, 0)
        or not all(math.isfinite(each["value"]) and each["met"] in (True, False) for each in result["targets"])
    ]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory for temporary files that PostgreSQL's user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_nothing_is_left_of_a_benchmark_that_is_told_to_end(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "tests.bench.api", "--small", "--output", tmp_path / "api.json"]
    environment = os.environ | {"TMPDIR": f"{folder}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert any("lists" in line for line in ran.stdout)  # all servers run by now
        assert servers_below(folder)
        ran.terminate()
        assert ran.wait(60) == 128 + signal.SIGTERM
    assert servers_below(folder) == []
    assert list(folder.iterdir()) == []


def servers_below(folder: Path) -> list[str]:
    """Returns the command lines of the processes with an argument in this folder."""
    done = subprocess.run(["pgrep", "-af", folder], capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if "tests.bench.api" not in line]


@pytest.mark.long
def test_the_benchmark_of_the_api_runs(tmp_path: Path) -> None:
    document = measured(tmp_path / "api.json", "--small", "--only", *TOGETHER, limit_s=300)
    assert set(document["experiments"]) == set(TOGETHER)
    assert unjudged(document) == []
    assert all(each > 0 for result in document["experiments"].values() for each in result["yardstick_ms"])
    rows = rows_of(document)
    assert all(rows[f"{clients} clients"]["claims/s"] > 0 for clients in (1, 4))
    assert all(row["answers"] > 0 == row["others"] for row in rows.values() if "others" in row)
    assert {f"{step}, {clients} clients" for step in STEPS for clients in (1, 4)} < rows.keys()
    for connections in ("64 kept connections", "a connection for each, 64 at once"):
        assert rows[connections]["failed"] == 0
        assert rows[connections]["API CPU ms"] > 0
        baseline = rows[f"{connections}: nothing but TLS and HTTP"]
        assert baseline["failed"] == 0
        assert baseline["heartbeats/s"] > 0
    assert rows["10 hosts"]["changes"] > 0
    assert rows["10 watchers"]["claims"] > 0
    assert (rows["10 watchers"]["lost"], rows["10 watchers"]["again or out of order"]) == (0, 0)


@pytest.mark.long
def test_the_benchmark_compares_fleets_by_size(tmp_path: Path) -> None:
    document = measured(tmp_path / "api.json", "--small", "--only", "growth", limit_s=300)
    assert unjudged(document) == []
    rows = rows_of(document)
    for row in (rows[f"{clients} clients, {gpus} GPUs"] for clients in (1, 4) for gpus in (40, 80)):
        assert row["claims/s"] > 0
        assert row["PostgreSQL CPU ms"] > 0


def test_no_experiment_is_left_out_but_the_one_that_installs_another_program() -> None:
    assert {*TOGETHER, "growth", "placement"} == set(EXPERIMENTS)


def test_a_comparison_that_was_skipped_and_a_target_that_is_missing_are_noticed() -> None:
    judged = {"targets": [{"value": 0.0, "met": False}]}
    missing: dict[str, Any] = {"targets": []}
    skipped = judged | {"skipped": "no network"}
    assert unjudged({"experiments": {"events": judged, "lists": missing}}) == []
    assert unjudged({"experiments": {"events": missing, "growth": judged}}) == ["events", "growth"]
    assert unjudged({"experiments": {"events": skipped}}) == ["events"]


def test_the_fleet_is_as_the_services_would_have_left_it(postgresql: Cluster) -> None:
    of = fleet.loaded(postgresql.create("bench_fleet"), 20)
    audit = Audit(of.url)
    assert audit.violations() == []
    for table, each in (
        ("slice_progress WHERE state = 'attached'", 1),
        ("slice_observations WHERE present AND open", 1),
        ("grants WHERE ended_at IS NULL", 1),
        ("events WHERE kind LIKE 'slice.%' AND seq IS NOT NULL", 2),
        ("audit WHERE action LIKE 'slice.%'", 2),
    ):
        assert audit.ask(f"SELECT count(*) FROM {table}") == [(each * of.slices,)], table
    assert audit.ask("SELECT count(*) FROM idempotency_keys") == [((of.slices - 1) // fleet.KEYS + 1,)]
    postgresql.drop("bench_fleet")
