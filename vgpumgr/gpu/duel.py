# SPDX-License-Identifier: Apache-2.0
"""Lets tenants compete for one GPU, each in its own processes, and counts the work that each got done.

A share is a part of the work done in the time in which all tenants ran. It never relies on a time that a tenant reports
about itself. Owns its processes: all have ended when `run` returns, whatever happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vgpumgr.gpu.shim import Preemption, Record, ShimMissingError, ShimSettings, library, records
from vgpumgr.gpu.statistics import quantile

# Compiling the kernels and creating a first context may take this long on a cold machine.
PATIENCE_S = 60.0
# This part at each end of a run is left out, because contexts warm up, and not all stop at the same time.
EDGE = 0.1
# Graphics and compute engines, by the driver's numbers.
KERNEL_ENGINES = range(1, 9)
# Environment variables that make launches synchronous, or keep kernels from being compiled.
SPOILING = ("CUDA_LAUNCH_BLOCKING", "CUDA_DISABLE_PTX_JIT")


Code = Literal["shim_missing", "cuda_missing", "driver_unknown", "shim_blind", "load_failed"]


class RigError(Exception):
    """Nothing can be measured here. `code` gives the reason as a stable word, `detail` as a sentence."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class Rig:
    """Where the tenants run: a real device, or a fake device, which is libraries to load after the shim.

    device: UUID of the GPU, or None for the first. on_child: called with the process id of each tenant that starts.
    """

    kind: Literal["device", "fake"] = "device"
    preload: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    device: str | None = None
    on_child: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """What a tenant runs, and how. A tenant with `load` idle has a context and launches nothing.

    timeslice_us: None keeps the timeslice that libcuda asks for. rounds: work of a kernel; None: it is measured so that
    a kernel takes `kernel_us`, which only works without a competing process. period_us: one kernel every period instead
    of as many as fit. processes: number of processes, each with its own context. mark_at_s: time of the call of
    `at_mark`, while the tenant works. program: a program in place of the load, with the same protocol.
    """

    name: str
    load: Literal["compute", "memory", "idle"] = "compute"
    timeslice_us: int | None = None
    preemption: Preemption = "pass"
    rounds: int | None = None
    kernel_us: float = 1000.0
    depth: int = 4
    period_us: float | None = None
    processes: int = 1
    ask_wfi: bool = False
    mark_at_s: float | None = None
    program: tuple[str, ...] = ("-S", "-m", "vgpumgr.gpu.load")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The results of one process. `mark_ns`: when it reported `mark`, and when it read that `at_mark` was done."""

    tenant: str
    pid: int
    rounds: int
    start_ns: int
    end_ns: int
    done_ns: Sequence[int]
    latency_us: Sequence[float]
    shim: Sequence[Record]
    gpu: str
    wfi_statuses: Sequence[int]
    mark_ns: Sequence[int]

    def done_until(self, t_ns: float) -> float:
        """Return the number of launches done until `t_ns`, with even progress between two launches."""
        index = bisect_right(self.done_ns, t_ns)
        if index in (0, len(self.done_ns)):
            return float(index)
        before, after = self.done_ns[index - 1], self.done_ns[index]
        return index + (t_ns - before) / (after - before)


@dataclass(frozen=True, kw_only=True)
class Duel:
    """The results of a run, and the time in which all tenants ran."""

    results: Sequence[Result]
    seconds: float

    @property
    def window_ns(self) -> tuple[float, float]:
        start = max(result.start_ns for result in self.results)
        end = min(result.start_ns for result in self.results) + self.seconds * 1e9
        return start + EDGE * (end - start), end - EDGE * (end - start)

    def of(self, tenant: str) -> list[Result]:
        return [result for result in self.results if result.tenant == tenant]

    def rate(self, tenant: str, window_ns: tuple[float, float] | None = None) -> float:
        """Return the rounds per second of all processes of the tenant together."""
        start, end = window_ns or self.window_ns
        done = sum((result.done_until(end) - result.done_until(start)) * result.rounds for result in self.of(tenant))
        return done / (end - start) * 1e9

    def share(self, tenant: str, window_ns: tuple[float, float] | None = None) -> float:
        """Return the tenant's part of all tenants' rounds. Meaningful only between loads of the same kind."""
        names = {result.tenant for result in self.results}
        total = sum(self.rate(name, window_ns) for name in names)
        return self.rate(tenant, window_ns) / total if total else 0.0

    def latencies_us(self, tenant: str) -> list[float]:
        """Return latencies of all requests due in the window, even if done later. Raises RigError for none."""
        start, end = self.window_ns
        found = [
            latency
            for result in self.of(tenant)
            for done, latency in zip(result.done_ns, result.latency_us, strict=True)
            if start <= done - latency * 1000 < end
        ]
        if not found:
            raise RigError("load_failed", f"tenant {tenant}: no request was due; measure longer")
        return found

    def latency_us(self, tenant: str, q: float) -> float:
        return quantile(self.latencies_us(tenant), q)


@dataclass(frozen=True, kw_only=True)
class Running:
    """One process of a tenant while it runs, for callers that act on it."""

    tenant: str
    process: subprocess.Popen[str]
    log: Path
    control: Path
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def records(self) -> list[Record]:
        return records(self.log)


def _command(tenant: Tenant, seconds: float, log: Path, output: Path) -> list[str]:
    options: dict[str, object] = {
        "--kind": tenant.load,
        "--seconds": seconds,
        "--kernel-us": tenant.kernel_us,
        "--depth": tenant.depth,
        "--output": output,
    }
    optional: dict[str, object | None] = {
        "--rounds": 1 if tenant.load == "idle" else tenant.rounds,
        "--period-us": tenant.period_us,
        "--mark-at": tenant.mark_at_s,
        "--ask-wfi": log if tenant.ask_wfi else None,
    }
    options |= {name: value for name, value in optional.items() if value is not None}
    words = [str(word) for option in options.items() for word in option]
    # -P keeps the current directory out of the module path, because anybody may write there.
    return [sys.executable, "-P", *tenant.program, *words]


def _environment(rig: Rig, settings: ShimSettings) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in SPOILING}
    package_root = str(Path(__file__).resolve().parents[2])
    # An empty entry would mean the current directory.
    inherited = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package_root, *inherited)))
    environment |= rig.environment
    environment |= settings.environment()
    # A control daemon of MPS would put all tenants into one channel group.
    environment["CUDA_MPS_PIPE_DIRECTORY"] = str(settings.log.parent)
    if rig.device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = rig.device
    environment["LD_PRELOAD"] = " ".join(str(path) for path in (_shim(), *rig.preload))
    return environment


def _shim() -> Path:
    try:
        return library()
    except ShimMissingError as error:
        raise RigError("shim_missing", str(error)) from error


def _start(rig: Rig, tenant: Tenant, seconds: float, scratch: Path, number: int) -> Running:
    base = scratch / f"{number}"
    log, control, output = (base.with_suffix(suffix) for suffix in (".log", ".control", ".json"))
    settings = ShimSettings(log=log, timeslice_us=tenant.timeslice_us, preemption=tenant.preemption, control=control)
    with base.with_suffix(".err").open("w") as complaints:
        process = subprocess.Popen(
            _command(tenant, seconds, log, output),
            env=_environment(rig, settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
    rig.on_child(process.pid)
    return Running(tenant=tenant.name, process=process, log=log, control=control, output=output)


def _expect(running: Running, event: str, deadline: float) -> dict[str, Any]:
    """Return the next line of a process, which must be this event. Raises RigError."""
    assert running.process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(running.process.stdout, selectors.EVENT_READ)
        if not selector.select(max(deadline - time.monotonic(), 0)):
            raise RigError("load_failed", f"tenant {running.tenant}: no {event} in time")
    line = running.process.stdout.readline()
    try:
        said: dict[str, Any] = json.loads(line)
    except ValueError:
        said = {}
    if said.get("event") != event:
        complaint = running.output.with_suffix(".err").read_text(errors="replace").strip().splitlines()
        reason = said.get("reason") or (complaint[-1] if complaint else f"status {running.process.poll()}")
        raise RigError(said.get("code", "load_failed"), f"tenant {running.tenant}: {reason}")
    return said


def _go(running: Running) -> None:
    assert running.process.stdin is not None
    try:
        running.process.stdin.write("go\n")
        running.process.stdin.flush()
    except OSError as error:
        raise RigError("load_failed", f"tenant {running.tenant} is gone: {error}") from error


def _check_shim(running: Running) -> None:
    """Check that the shim works: if no timeslice was set, a share says nothing about timeslices. Raises RigError."""
    seen = running.records()
    drivers = [entry for entry in seen if entry["event"] == "driver"]
    if drivers and not drivers[-1]["known"]:
        raise RigError("driver_unknown", f"driver {drivers[-1]['version'] or 'without a version'} is not a known one")
    if not any(entry["event"] == "group" and entry["engine_type"] in KERNEL_ENGINES for entry in seen):
        raise RigError(
            "shim_blind", f"tenant {running.tenant}: no channel group was seen; libcuda does not use ioctl()"
        )


def _result(running: Running, ready: Mapping[str, Any]) -> Result:
    document = json.loads(running.output.read_text())
    if document["counted"] != document["launches"]:
        raise RigError(
            "load_failed",
            f"tenant {running.tenant}: launched {document['launches']} kernels, the GPU counted {document['counted']}",
        )
    return Result(
        tenant=running.tenant,
        pid=running.pid,
        rounds=document["rounds"],
        start_ns=document["start_ns"],
        end_ns=document["end_ns"],
        done_ns=document["done_ns"],
        latency_us=document["latency_us"],
        shim=running.records(),
        gpu=ready["gpu"],
        wfi_statuses=ready["wfi_statuses"],
        mark_ns=document["mark_ns"],
    )


@contextlib.contextmanager
def _ended(processes: list[Running]) -> Iterator[None]:
    try:
        yield
    finally:
        for running in processes:
            running.process.kill()
        for running in processes:
            try:
                running.process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired as error:
                detail = f"tenant {running.tenant}: process {running.pid} did not end when it was killed"
                raise RigError("load_failed", detail) from error


def run(
    rig: Rig,
    tenants: Sequence[Tenant],
    *,
    seconds: float,
    at_mark: Callable[[Running], None] | None = None,
) -> Duel:
    """Start all tenants, let them begin together once all are ready, and wait for their end.

    When a tenant reaches its `mark_at_s`, `at_mark` is called while it works on. Raises ValueError and RigError.
    """
    if sum(tenant.processes for tenant in tenants) > 1 and any(
        tenant.rounds is None for tenant in tenants if tenant.load != "idle"
    ):
        raise ValueError("rounds: the time of a kernel can only be measured on an idle GPU")
    with tempfile.TemporaryDirectory(prefix="vgpumgr-duel-") as name:
        processes: list[Running] = []
        with _ended(processes):
            for tenant in tenants:
                for _ in range(tenant.processes):
                    processes.append(_start(rig, tenant, seconds, Path(name), len(processes)))
            readies = []
            for running in processes:
                readies.append(_expect(running, "ready", time.monotonic() + PATIENCE_S))
                _check_shim(running)
            for running in processes:
                _go(running)
            deadline = time.monotonic() + seconds + PATIENCE_S
            marked = {tenant.name for tenant in tenants if tenant.mark_at_s is not None}
            for running in processes:
                if running.tenant in marked:
                    _expect(running, "mark", deadline)
                    if at_mark is not None:
                        at_mark(running)
                    _go(running)
            for running in processes:
                _expect(running, "end", deadline)
            results = [_result(running, ready) for running, ready in zip(processes, readies, strict=True)]
    return Duel(results=results, seconds=seconds)
