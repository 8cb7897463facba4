# SPDX-License-Identifier: Apache-2.0
"""The scheduler's tracepoints: every run of every tenant, read from the kernel's trace buffer."""

import re
import subprocess
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TRACING = Path("/sys/kernel/tracing")
_RUN_END = re.compile(
    r" (?P<seconds>\d+)\.(?P<micros>\d{6}): vgpu_run_end: gpu=(?P<gpu>\S+) "
    r"tenant=(?P<tenant>\S+) slice=\S+ start_ns=(?P<start>\d+) length_ns=(?P<length>\d+) .*?reason=(?P<reason>\w+)"
)

_READY = re.compile(r"vgpu_ready: gpu=\S+ tenant=(?P<tenant>\S+) slice=\S+ time_ns=(?P<time>\d+)")
_HOLD = re.compile(r"vgpu_hold: gpu=\S+ tenant=(?P<tenant>\S+) start_ns=(?P<start>\d+) length_ns=(?P<length>\d+)")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a tenant's group. Times in ns of the monotonic clock.

    length_ns: the time charged. end_ns: the time of the next decision. That is later than the run's end by the time
    charged to nobody because the host was late, or by some us that the tracer took.
    """

    tenant: str
    start_ns: int
    length_ns: int
    end_ns: int
    reason: str

    @property
    def charged_until_ns(self) -> int:
        """When the run was over, if all of its time was charged."""
        return self.start_ns + self.length_ns


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Time for which a tenant held the idle engine, and paid for it. Times in ns of the monotonic clock."""

    tenant: str
    start_ns: int
    length_ns: int


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A slice of a tenant had no item for the engine, and then got one. Time in ns of the monotonic clock."""

    tenant: str
    time_ns: int


@dataclass(frozen=True)
class Trace:
    """The runs, holds and wakeups that began and ended while the tracer was on."""

    runs: list[Run] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)

    def waits_ns(self, tenant: str) -> list[int]:
        """How long a tenant waited for the engine each time that it got an item again."""
        starts = sorted(run.start_ns for run in self.runs if run.tenant == tenant)
        asked = [ready.time_ns for ready in self.ready if ready.tenant == tenant]
        return [starts[at] - time_ns for time_ns in asked if (at := bisect_left(starts, time_ns)) < len(starts)]


def mounted() -> None:
    """Mount the kernel's tracing directory if it is missing."""
    if not (TRACING / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)


@contextmanager
def traced_runs(*, buffer_kib: int = 65536) -> Iterator[list[Run]]:
    """Record the runs that begin and end while the body executes; the list is filled at its end."""
    with traced(buffer_kib=buffer_kib) as trace:
        yield trace.runs


@contextmanager
def traced(*, buffer_kib: int = 65536, tenant: str | None = None) -> Iterator[Trace]:
    """Record the events of all tenants, or of one, while the body executes; the lists are filled at its end.

    Switching the tracer on and off stops the machine for milliseconds, including the engine's thread. A run that is cut
    by such a stop does not show the scheduler's behaviour. Raises if events were lost.
    """
    mounted()
    clock = TRACING / "trace_clock"
    before = re.findall(r"\[(\w+)\]", clock.read_text())[0]
    enable, chosen = TRACING / "events/vgpu/enable", TRACING / "events/vgpu/filter"
    trace = Trace()
    try:
        clock.write_text("mono")  # which empties the buffer
        if tenant is not None:
            chosen.write_text(f'tenant == "{tenant}"')
        (TRACING / "buffer_size_kb").write_text(str(buffer_kib))
        enable.write_text("1")
        begun_ns = time.monotonic_ns()
        try:
            yield trace
        finally:
            ended_ns = time.monotonic_ns()
            enable.write_text("0")
            text = (TRACING / "trace").read_text()
    finally:
        clock.write_text(before)
        if tenant is not None:
            chosen.write_text("0")
    if "LOST" in text:
        raise RuntimeError("the trace buffer was too small")
    for match in _RUN_END.finditer(text):
        start_ns, length_ns = int(match["start"]), int(match["length"])
        seen_ns = (int(match["seconds"]) * 1_000_000 + int(match["micros"])) * 1000
        run = Run(
            tenant=match["tenant"],
            start_ns=start_ns,
            length_ns=length_ns,
            end_ns=max(start_ns + length_ns, seen_ns),
            reason=match["reason"],
        )
        if run.start_ns >= begun_ns and run.end_ns <= ended_ns:
            trace.runs.append(run)
    for match in _READY.finditer(text):
        trace.ready.append(Ready(tenant=match["tenant"], time_ns=int(match["time"])))
    for match in _HOLD.finditer(text):
        hold = Hold(tenant=match["tenant"], start_ns=int(match["start"]), length_ns=int(match["length"]))
        if hold.start_ns >= begun_ns:
            trace.holds.append(hold)


@contextmanager
def calls_of(function: str) -> Iterator[list[tuple[int, int]]]:
    """Record the time and the second argument of each call of one of the module's functions while the body executes.

    The list is filled at the end. Times in ns of the monotonic clock; the tracer's resolution is one microsecond.
    """
    mounted()
    probes, own = TRACING / "kprobe_events", TRACING / "instances/calls"
    probes.write_text(f"p:calls/{function} vgpumgr:{function} second=%si:u64\n")
    own.mkdir()
    (own / "trace_clock").write_text("mono")
    enable = own / f"events/calls/{function}/enable"
    enable.write_text("1")
    calls: list[tuple[int, int]] = []
    try:
        yield calls
    finally:
        enable.write_text("0")
        text = (own / "trace").read_text()
        own.rmdir()
        probes.write_text("")
    for seconds, micros, second in re.findall(rf" (\d+)\.(\d{{6}}): {function}: .*second=(\d+)", text):
        calls.append(((int(seconds) * 1_000_000 + int(micros)) * 1000, int(second)))


def worst_excess_ns(runs: list[Run], *, cap_us: int, period_us: int) -> int:
    """Largest use beyond `rate * T` over every window T between any two instants, in ns.

    The largest excess is in a window that begins at the start of a run and finishes at the end of one. So it is the
    largest rise of use - rate * time, found in one pass with the smallest value seen before. A run in which the host
    was late has gaps at unknown places. The run counts as if it had none, so that no excess is missed.
    """
    used = 0  # in ns * period_us, like all values here: exact
    worst = 0
    lowest: int | None = None
    for run in runs:
        before = used - run.start_ns * cap_us
        lowest = before if lowest is None else min(lowest, before)
        used += run.length_ns * period_us
        worst = max(worst, used - run.charged_until_ns * cap_us - lowest)
    return worst // period_us
