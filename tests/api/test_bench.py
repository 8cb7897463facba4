# SPDX-License-Identifier: Apache-2.0
"""`make bench-api` in small: that it runs, and that what it measured happened. Its figures mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = ("lists", "claims", "heartbeats", "watchers")


def test_the_benchmark_of_the_api_runs(tmp_path: Path) -> None:
    output = tmp_path / "api.json"
    command = [sys.executable, "-m", "tests.bench.api", "--small", "--only", *TOGETHER, "--output", output]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads(output.read_text())
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
