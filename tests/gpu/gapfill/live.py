# SPDX-License-Identifier: Apache-2.0
"""The pairs on a real GPU: PyTorch models in processes, with the gate between them and without it.

Tests without a GPU cover the gate, its clients and their deaths (test_server.py), the workers' loop (test_worker.py)
and the same decisions on a virtual clock (virtual.py). Figures are in docs/gap-fill.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tests.bench.sched.result import digest, target
from tests.gpu.gapfill.gate import Role
from tests.gpu.gapfill.pairs import MEAN_LIMIT, P99_LIMIT, figure
from tests.gpu.gapfill.start import ROOT, Link, start_gate
from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu import discovery
from vgpumgr.gpu.probe import Watch
from vgpumgr.gpu.statistics import quantile

SECONDS, QUICK_SECONDS = 10.0, 2.0
REPEATS = 3
PATIENCE_S = 300.0
GATE_ENDS_S = 10.0
EXCLUSIVE, DEFAULT, STRICT, GATE = "exclusive", "default sharing", "strict priority", "gap gate"
WAYS = (GATE, STRICT, DEFAULT)
# A service's period, as a multiple of its request's duration alone.
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


class VoidRepeatError(Exception):
    """The gate did not control the run that was measured."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The environment of processes, and the function that is told of them."""

    environment: Mapping[str, str]
    on_child: Callable[[int], None]


@contextlib.contextmanager
def site(uuid: str, on_child: Callable[[int], None]) -> Iterator[Site]:
    """Use one GPU without MPS: its control daemon would put all processes into one channel group."""
    with tempfile.TemporaryDirectory(prefix="vgpumgr-no-mps-") as empty:
        yield Site(environment={"CUDA_VISIBLE_DEVICES": uuid, "CUDA_MPS_PIPE_DIRECTORY": empty}, on_child=on_child)


def why_not() -> str | None:
    """Return why this machine cannot run the pairs, or None if it can."""
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


def _run(commands: Sequence[Sequence[str]], where: Site, links: Sequence[Link] = ()) -> list[dict[str, Any]]:
    """Start all commands, begin their work together, and return their results. Raises RuntimeError if one fails."""
    with contextlib.ExitStack() as stack:
        started: list[subprocess.Popen[str]] = []
        for number, command in enumerate(commands):
            if links:
                process = links[number].start(command, where.environment, stdin=subprocess.PIPE)
            else:
                process = subprocess.Popen(
                    command, cwd=ROOT, env={**os.environ, **where.environment}, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
            stack.callback(process.kill)
            where.on_child(process.pid)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"{process.args!r}: ended with {process.wait()} before it was ready")
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outcomes = [json.loads(process.communicate(timeout=PATIENCE_S)[0] or "{}") for process in started]
    for outcome, command in zip(outcomes, commands, strict=True):
        if "done" not in outcome:
            raise RuntimeError(f"{' '.join(command)}: {outcome.get('error', 'it ended without a word')}")
    return outcomes


def shared(way: str, commands: Sequence[Sequence[str]], where: Site) -> list[dict[str, Any]]:
    """Run both commands with one way of sharing. Raises VoidRepeatError."""
    if way == DEFAULT:
        return _run(commands, where)
    gate, links = start_gate([("service", Role.FIRST), ("job", Role.OTHER)], *(["--strict"] if way == STRICT else []))
    try:
        outcomes = _run(commands, where, links)
        said, _ = gate.communicate(timeout=GATE_ENDS_S)  # the gate ends with its clients
    finally:
        gate.kill()
        gate.communicate()
    irregular = [line for line in map(_said, said.splitlines()) if "evicted" in line or "overdue" in line]
    if gate.returncode:
        irregular.append(f"the gate ended with {gate.returncode}")
    if unnoticed := sum(outcome["unnoticed"] for outcome in outcomes):
        irregular.append(f"{unnoticed} items went unnoticed")
    if irregular:
        raise VoidRepeatError(f"{way}: {', '.join(irregular)}")
    return outcomes


def _said(line: str) -> str:
    return str(json.loads(line)["said"])


def _measured(pair: LivePair, seconds: float, where: Site, number: int) -> dict[str, dict[str, float]]:
    """Return one repeat's ratios by way of sharing. The first way changes each time, so a drift affects all alike."""
    alone_ms = fmean(_run([_worker(pair.service, "inference", seconds / 4, 0)], where)[0]["latency_ns"]) / 1e6
    service = _worker(pair.service, "inference", seconds, LOAD * alone_ms)
    job = _worker(pair.job, "training", seconds, 0)
    (exclusive,) = _run([service], where)
    (job_alone,) = _run([job], where)
    rows = {}
    for way in (*WAYS[number % len(WAYS) :], *WAYS[: number % len(WAYS)]):
        first, other = shared(way, [service, job], where)
        rows[way] = {
            "mean": fmean(first["latency_ns"]) / fmean(exclusive["latency_ns"]),
            "p99": quantile(first["latency_ns"], 0.99) / quantile(exclusive["latency_ns"], 0.99),
            "job": other["done"] / max(job_alone["done"], 1),
            "alone ms": fmean(exclusive["latency_ns"]) / 1e6,
        }
    return rows


def repeated(
    pair: LivePair, seconds: float, repeats: int, where: Site
) -> tuple[list[dict[str, dict[str, float]]], list[str]]:
    """Return the results of the repeats, and which are void. Raises RuntimeError if all are void."""
    found, void = [], []
    for number in range(1, repeats + 1):
        try:
            found.append(_measured(pair, seconds, where, number - 1))
        except VoidRepeatError as error:
            void.append(f"{pair.name}: repeat {number} is void: {error}")
    if not found:
        raise RuntimeError(f"every repeat is void: {'; '.join(void)}")
    return found, void


def measure(
    *,
    quick: bool = False,
    seconds: float | None = None,
    repeats: int | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return a benchmark's result, see `tests.bench.sched.result`. Raises ProbeRefusedError if others use the GPU.

    `seconds`, `repeats`: duration and number of runs for each way of sharing, if not the usual ones. `told` is called
    for each pair.
    """
    if seconds is None:
        seconds = QUICK_SECONDS if quick else SECONDS
    if repeats is None:
        repeats = 1 if quick else REPEATS
    pairs = PAIRS[:1] if quick else PAIRS
    outcomes = {}
    with discovery.opened() as nvml:
        gpu = discovery.chosen(nvml.gpus(), ["0"])[0]
        nvml.check(gpu)
        watch = Watch(nvml, gpu)
        with watch, site(gpu.uuid, watch.ours) as where:
            for pair in pairs:
                outcomes[pair.name] = repeated(pair, seconds, repeats, where)
                told(f"{pair.name}: {json.dumps(outcomes[pair.name])}")
        watch.check()
    found = {name: rows for name, (rows, _) in outcomes.items()}

    def values(pair: str, way: str, what: str) -> list[float]:
        return [rows[way][what] for rows in found[pair]]

    figures = {
        title: {pair: {way: figure(values(pair, way, what)) for way in WAYS} for pair in found}
        for title, what in (
            ("service: mean against exclusive", "mean"),
            ("service: p99 against exclusive", "p99"),
            ("job: iterations against exclusive", "job"),
        )
    }
    targets = [
        target(f"{pair}: {what}", f"<= {limit:g}", worst, met=worst <= limit)
        for pair in found
        for what, limit in (("mean", MEAN_LIMIT), ("p99", P99_LIMIT))
        for worst in [max(values(pair, GATE, what))]
    ]
    return {
        "name": f"Gap fill through the launch gate, {gpu.name}",
        "model": f"driver {gpu.driver}; PyTorch, a context for each process; {seconds:g} s of each; a request every"
        f" {LOAD:g} times what one takes alone; the gate is asked before every block of a model",
        "seeds": list(range(repeats)),
        "baselines": [EXCLUSIVE, STRICT, DEFAULT],
        "hashes": {"workload": digest(sorted(found)), "schedule": digest(sorted(found.items()))},
        "figures": figures,
        "targets": targets,
        "losing": [
            "a job that launches without asking is not held back: the gate is cooperative",
            *(line for _, void in outcomes.values() for line in void),
        ],
    }
