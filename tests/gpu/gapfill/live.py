# SPDX-License-Identifier: Apache-2.0
"""The pairs on a real GPU: PyTorch models in processes, with the gate between them and without.

Never run where this was written: no GPU was at hand. What is proven without one is the gate, its clients and their
deaths (test_server.py), the workers' loop (test_worker.py) and the same decisions on a virtual clock (virtual.py).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tests.bench.sched.result import digest, interval, target
from tests.gpu.gapfill.gate import Role
from tests.gpu.gapfill.pairs import MEAN_LIMIT, P99_LIMIT
from tests.gpu.gapfill.start import ROOT, Link, start_gate
from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu import discovery
from vgpumgr.gpu.statistics import quantile

SECONDS, QUICK_SECONDS = 10.0, 2.0
REPEATS = 3
PATIENCE_S = 300.0
EXCLUSIVE, DEFAULT, STRICT, GATE = "exclusive", "default sharing", "strict priority", "gap gate"
# A service's period, as a multiple of how long its request takes alone.
LOAD = 4.0


@dataclass(frozen=True, kw_only=True)
class LivePair:
    """A service that answers requests, and a job that trains."""

    service: str
    job: str

    @property
    def name(self) -> str:
        return f"{self.service} inference / {self.job} training"


PAIRS = (
    LivePair(service="separable", job="residual"),
    LivePair(service="residual", job="transformer"),
    LivePair(service="transformer", job="residual"),
    LivePair(service="residual", job="wide-transformer"),
    LivePair(service="transformer", job="wide-transformer"),
)


def why_not() -> str | None:
    """Why this machine cannot run it; None if it can."""
    try:
        with discovery.opened() as nvml:
            nvml.check(discovery.chosen(nvml.gpus(), ["0"])[0])
    except ProbeRefusedError as error:
        return f"{error.code}: {error}"
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return None


def _worker(model: str, kind: str, seconds: float, period_ms: float) -> list[str]:
    words = ["--model", model, "--kind", kind, "--seconds", str(seconds), "--period-ms", str(period_ms)]
    return [sys.executable, "-m", "tests.gpu.gapfill.worker", *words]


def _run(commands: Sequence[Sequence[str]], links: Sequence[Link] = ()) -> list[dict[str, Any]]:
    """Start all, let them go together, and return what they did. RuntimeError for one that fails."""
    with contextlib.ExitStack() as stack:
        started: list[subprocess.Popen[str]] = []
        for number, command in enumerate(commands):
            if links:
                process = links[number].start(command, stdin=subprocess.PIPE)
            else:
                process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{process.args}: ended with {process.wait()} before it was ready")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outcomes = [json.loads(process.communicate(timeout=PATIENCE_S)[0] or "{}") for process in started]
    for outcome, command in zip(outcomes, commands, strict=True):
        if "done" not in outcome:
            raise RuntimeError(f"{' '.join(command)}: {outcome.get('error', 'it ended without a word')}")
    return outcomes


def _shared(way: str, commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    if way == DEFAULT:
        return _run(commands)
    gate, links = start_gate([("service", Role.FIRST), ("job", Role.OTHER)], *(["--strict"] if way == STRICT else []))
    try:
        return _run(commands, links)
    finally:
        gate.kill()
        gate.communicate()


def _measured(pair: LivePair, seconds: float) -> dict[str, dict[str, float]]:
    """Ratios of one repeat, by way of sharing."""
    alone_ms = fmean(_run([_worker(pair.service, "inference", seconds / 4, 0)])[0]["latency_ns"]) / 1e6
    service = _worker(pair.service, "inference", seconds, LOAD * alone_ms)
    job = _worker(pair.job, "training", seconds, 0)
    (exclusive,) = _run([service])
    (job_alone,) = _run([job])
    rows = {}
    for way in (GATE, STRICT, DEFAULT):
        first, other = _shared(way, [service, job])
        rows[way] = {
            "mean": fmean(first["latency_ns"]) / fmean(exclusive["latency_ns"]),
            "p99": quantile(first["latency_ns"], 0.99) / quantile(exclusive["latency_ns"], 0.99),
            "job": other["done"] / max(job_alone["done"], 1),
            "alone ms": fmean(exclusive["latency_ns"]) / 1e6,
        }
    return rows


def measure(*, quick: bool = False) -> dict[str, Any]:
    """As a benchmark's result, see `tests.bench.sched.result`."""
    with discovery.opened() as nvml:
        gpu = discovery.chosen(nvml.gpus(), ["0"])[0]
    seconds, repeats = (QUICK_SECONDS, 1) if quick else (SECONDS, REPEATS)
    pairs = PAIRS[:1] if quick else PAIRS
    found = {pair.name: [_measured(pair, seconds) for _ in range(repeats)] for pair in pairs}
    ways = (GATE, STRICT, DEFAULT)

    def values(pair: str, way: str, figure: str) -> list[float]:
        return [rows[way][figure] for rows in found[pair]]

    figures = {
        title: {pair: {way: interval(values(pair, way, figure)) for way in ways} for pair in found}
        for title, figure in (
            ("service: mean against exclusive", "mean"),
            ("service: p99 against exclusive", "p99"),
            ("job: iterations against exclusive", "job"),
        )
    }
    targets = [
        target(f"{pair}: {figure}", f"<= {limit:g}", worst, met=worst <= limit)
        for pair in found
        for figure, limit in (("mean", MEAN_LIMIT), ("p99", P99_LIMIT))
        for worst in [max(values(pair, GATE, figure))]
    ]
    return {
        "name": f"Gap fill through the launch gate, {gpu.name}",
        "model": f"driver {gpu.driver}; PyTorch, a context for each process; a request every {LOAD:g} times what one"
        " takes alone; the gate is asked before every block of a model",
        "seeds": list(range(repeats)),
        "baselines": [EXCLUSIVE, STRICT, DEFAULT],
        "hashes": {"workload": digest(sorted(found)), "schedule": digest(sorted(found.items()))},
        "figures": figures,
        "targets": targets,
        "losing": ["a job that launches without asking is not held back: the gate is cooperative"],
    }
