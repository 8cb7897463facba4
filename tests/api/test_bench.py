# SPDX-License-Identifier: Apache-2.0
"""`make bench-api` in small: that it runs, and that what it measured happened. Its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = ("lists", "claims", "heartbeats", "watchers", "events")


def measured(output: Path, *options: str, limit_s: int) -> Any:
    """What the benchmark wrote."""
    command = [sys.executable, "-m", "tests.bench.api", *options, "--output", output]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(output.read_text())


def test_the_benchmark_of_the_api_runs(tmp_path: Path) -> None:
    document = measured(tmp_path / "api.json", "--small", "--only", *TOGETHER, limit_s=300)
    assert set(document["experiments"]) == set(TOGETHER)
    rows = {
        name: row
        for result in document["experiments"].values()
        for table in result["figures"].values()
        for name, row in table.items()
    }
    assert all(rows[f"{clients} clients"]["claims/s"] > 0 for clients in (1, 4))
    assert rows["64 connections"]["failed"] == 0
    assert rows["10 hosts"]["changes"] > 0
    assert rows["10 watchers"]["claims"] > 0
    assert (rows["10 watchers"]["lost"], rows["10 watchers"]["again or out of order"]) == (0, 0)


@pytest.mark.long
def test_the_whole_fleet_adds_up_after_all_claims(tmp_path: Path) -> None:
    """Targets are for ``make bench-api BENCH=--strict``: they are of a machine that does nothing else."""
    document = measured(tmp_path / "api.json", limit_s=2400)
    assert (document["hosts"], document["gpus"]) == (10_000, 40_000)
    assert document["slices"] >= 400_000
