# SPDX-License-Identifier: Apache-2.0
"""Records the tracepoints `vgpu:*` for a while, in a trace instance of its own.

Their text is no stable interface: this module and kmod/trace.h belong to the same version, and a test compares them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vgpumgr.errors import ControlUnavailableError

TRACING = Path("/sys/kernel/tracing")
_BUFFER_KIB = 16 << 10
_NAMES = r"gpu=(?P<gpu>\S+) tenant=(?P<tenant>\S+)"
_RUN_END = re.compile(
    rf"vgpu_run_end: {_NAMES} slice=(?P<slice>\S+) start_ns=(?P<start_ns>\d+) length_ns=(?P<length_ns>\d+) "
    r"timeslice_ns=(?P<timeslice_ns>\d+) run=(?P<run>\d+) run_ns=(?P<run_ns>\d+) reason=(?P<reason>\w+)"
)
_HOLD = re.compile(rf"vgpu_hold: {_NAMES} start_ns=(?P<start_ns>\d+) length_ns=(?P<length_ns>\d+)")
_PARKED = re.compile(rf"vgpu_parked: {_NAMES} length_ns=(?P<length_ns>\d+) run_ns=(?P<run_ns>\d+)")
_LOST = re.compile(r"\[LOST (\d+) EVENTS\]")


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """One run of a tenant's group. `slice`: the slice that ran last. Times are ns of the monotonic clock.

    `run`, `run_ns`: the kernel's counters of the group, including this run. `reason`: why the run ended.
    """

    gpu: str
    tenant: str
    slice: str
    start_ns: int
    length_ns: int
    timeslice_ns: int
    run: int
    run_ns: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Time in which the engine idled for a tenant's next item, charged to the tenant but outside of its runs."""

    gpu: str
    tenant: str
    start_ns: int
    length_ns: int


@dataclass(frozen=True, kw_only=True)
class Parked:
    """Idle time charged to a tenant: time in which no slice had work, but the tenant's slices kept their turns.

    Only the policies "equal_share" and "fixed_share", in which a slice keeps its turn, charge such time.
    `run_ns`: the kernel's counter of the group, including this time.
    """

    gpu: str
    tenant: str
    length_ns: int
    run_ns: int


Happened = EndedRun | Hold | Parked


@dataclass
class Recording:
    """All records in order. `lost`: events that the kernel could not record. Both are set when the recording ends."""

    happened: tuple[Happened, ...] = ()
    lost: int = 0


def parse(text: str) -> Recording:
    """Parse the file `trace`. Lines of other events, and of runs that begin, are skipped."""
    happened: list[Happened] = []
    lost = 0
    for line in text.splitlines():
        if match := _RUN_END.search(line):
            happened.append(
                EndedRun(
                    gpu=match["gpu"],
                    tenant=match["tenant"],
                    slice=match["slice"],
                    start_ns=int(match["start_ns"]),
                    length_ns=int(match["length_ns"]),
                    timeslice_ns=int(match["timeslice_ns"]),
                    run=int(match["run"]),
                    run_ns=int(match["run_ns"]),
                    reason=match["reason"],
                )
            )
        elif match := _HOLD.search(line):
            happened.append(
                Hold(
                    gpu=match["gpu"],
                    tenant=match["tenant"],
                    start_ns=int(match["start_ns"]),
                    length_ns=int(match["length_ns"]),
                )
            )
        elif match := _PARKED.search(line):
            happened.append(
                Parked(
                    gpu=match["gpu"],
                    tenant=match["tenant"],
                    length_ns=int(match["length_ns"]),
                    run_ns=int(match["run_ns"]),
                )
            )
        elif match := _LOST.search(line):
            lost += int(match[1])
    return Recording(tuple(happened), lost)


@contextmanager
def recorded(*, tracing: Path = TRACING, buffer_kib: int = _BUFFER_KIB) -> Iterator[Recording]:
    """Record while the body runs. `buffer_kib`: size of the buffer of each CPU; a run takes about 200 bytes.

    ControlUnavailableError if the tracing file system or our tracepoints are missing.
    """
    instance = tracing / "instances" / f"vgpumgr-{os.getpid()}"
    recording = Recording()
    try:
        instance.mkdir()
    except OSError as error:
        raise ControlUnavailableError(
            f"cannot trace below {tracing}: {error.strerror}; it takes root and a mounted tracefs"
        ) from error
    try:
        enable = instance / "events" / "vgpu" / "enable"
        if not enable.exists():
            raise ControlUnavailableError("the kernel has no tracepoints vgpu:*; vgpumgr.ko is not loaded")
        (instance / "buffer_size_kb").write_text(str(buffer_kib))
        (instance / "trace_clock").write_text("mono")  # this clock is the same on all CPUs
        enable.write_text("1")
        try:
            yield recording
        finally:
            enable.write_text("0")
        found = parse((instance / "trace").read_text())
        recording.happened = found.happened
        recording.lost = found.lost + _overruns(instance)
    finally:
        instance.rmdir()


def _overruns(instance: Path) -> int:
    """Return the number of events that the kernel overwrote or dropped, on all CPUs."""
    lost = 0
    for stats in instance.glob("per_cpu/cpu*/stats"):
        for line in stats.read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("overrun", "dropped events"):
                lost += int(value)
    return lost
