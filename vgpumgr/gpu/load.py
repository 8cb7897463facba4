# SPDX-License-Identifier: Apache-2.0
"""One tenant: launches kernels of a fixed amount of work and writes down when each was done.

Run as a process of its own, `python -m vgpumgr.gpu.load`. On standard output come lines of JSON: `ready` once the
context is there, `mark` where one was asked for, `end`. It begins to work when it reads a line; after `mark` it works
on, and writes down when it read another. What it did is in the file `--output`. Times are CLOCK_MONOTONIC_RAW, which
all processes of a machine share.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpumgr.gpu import abi
from vgpumgr.gpu.cuda import Cuda, CudaError, Kernel
from vgpumgr.gpu.shim import records

CALIBRATION_ROUNDS = 64
CALIBRATION_LAUNCHES = 8
_PR_SET_PDEATHSIG = 1


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def say(event: str, **members: Any) -> None:
    print(json.dumps({"event": event, **members}), flush=True)


def hear() -> None:
    """Wait for a line. End the process if its parent is gone."""
    if not sys.stdin.readline():
        sys.exit("load: standard input ended before the start")


def end_with_parent() -> None:
    """Make the kernel end this process with its parent, so that a load does not stay on the GPU."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Done:
    """When each launch was done, and how long after its due time."""

    done_ns: list[int] = field(default_factory=list)
    latency_us: list[float] = field(default_factory=list)

    def add(self, due_ns: int) -> None:
        now = now_ns()
        self.done_ns.append(now)
        self.latency_us.append((now - due_ns) / 1000)


class Mark:
    """A thread that says `mark` while the tenant works, and then notes when it heard a line."""

    def __init__(self, cuda: Cuda, after_s: float) -> None:
        self._cuda, self._after_s = cuda, after_s
        self._attached = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.t_ns: list[int] = []

    def start(self) -> None:
        """Start the time to the mark."""
        self._thread.start()
        self._attached.wait()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with self._cuda.attached():
            self._attached.set()
            time.sleep(self._after_s)
            self.t_ns.append(now_ns())
            say("mark", t_ns=self.t_ns[0])
            hear()
            self.t_ns.append(now_ns())


class Tenant:
    """The loops of the load. At most `depth` launches are outstanding, so the GPU always has work of this tenant."""

    def __init__(self, cuda: Cuda, kernel: Kernel, *, rounds: int, depth: int) -> None:
        self._cuda, self._kernel, self._rounds = cuda, kernel, rounds
        self._stream = cuda.stream()
        self._events = [cuda.event() for _ in range(depth)]
        self.launches = 0

    def calibrate(self, kernel_us: float) -> int:
        """Return the rounds that take about `kernel_us` on an idle GPU, from the shortest of a few tries."""
        rounds, took_us = CALIBRATION_ROUNDS, 0.0
        while True:
            took_us = min(self._time_us(rounds) for _ in range(CALIBRATION_LAUNCHES))
            if took_us >= kernel_us / 2 or rounds > 1 << 26:
                return max(round(rounds * kernel_us / took_us), 1)
            rounds *= 2

    def _time_us(self, rounds: int) -> float:
        started = now_ns()
        self._kernel.launch(rounds, self._stream)
        self._cuda.record(self._events[0], self._stream)
        self._cuda.wait(self._events[0])
        self.launches += 1
        return (now_ns() - started) / 1000

    def _launch(self, slot: int) -> None:
        self._kernel.launch(self._rounds, self._stream)
        self._cuda.record(self._events[slot], self._stream)
        self.launches += 1

    def saturate(self, until_ns: int) -> Done:
        """Keep more work queued than the GPU can do."""
        done, due = Done(), [0] * len(self._events)
        launched = 0
        while now_ns() < until_ns:
            slot = launched % len(self._events)
            if launched >= len(self._events):
                self._cuda.wait(self._events[slot])
                done.add(due[slot])
            due[slot] = now_ns()
            self._launch(slot)
            launched += 1
        for left in range(max(launched - len(self._events), 0), launched):
            slot = left % len(self._events)
            self._cuda.wait(self._events[slot])
            done.add(due[slot])
        return done

    def serve(self, until_ns: int, period_us: float) -> Done:
        """Launch once every period. A latency counts from the due time, so it includes a late start."""
        done, due_ns = Done(), now_ns()
        while due_ns < until_ns:
            if (early_ns := due_ns - now_ns()) > 0:
                time.sleep(early_ns / 1e9)
            self._launch(0)
            self._cuda.wait(self._events[0])
            done.add(due_ns)
            due_ns += round(period_us * 1000)
        return done


def ask_for_unpreemptible_kernels(log: Path) -> list[int]:
    """Act like a greedy tenant: ask for WFI on each channel the shim saw, on each subdevice. Return all statuses."""
    seen = records(log)
    subdevices = [(entry["client"], entry["subdevice"]) for entry in seen if entry["event"] == "subdevice"]
    return [
        abi.set_compute_preemption(
            entry["fd"], client=client, subdevice=subdevice, channel=entry["channel"], mode=abi.COMPUTE_WFI
        )
        for entry in seen
        if entry["event"] == "channel"
        for client, subdevice in subdevices
        if client == entry["client"]
    ]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m vgpumgr.gpu.load", description=__doc__, allow_abbrev=False)
    parser.add_argument("--kind", choices=("compute", "memory", "idle"), default="compute")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--kernel-us", type=float, default=1000.0, help="length of a kernel, measured first")
    parser.add_argument("--rounds", type=int, help="work of a kernel; nothing is measured first")
    parser.add_argument("--depth", type=int, default=4, help="launches outstanding at most")
    parser.add_argument("--period-us", type=float, help="one launch every period instead of as many as fit")
    parser.add_argument("--mark-at", type=float, help="after these seconds say so, work on, and wait for a line")
    parser.add_argument("--ask-wfi", type=Path, help="ask for unpreemptible kernels, handles from this log of the shim")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(argv)


def work(arguments: argparse.Namespace, tenant: Tenant, seconds: float) -> Done:
    until_ns = now_ns() + round(seconds * 1e9)
    if arguments.kind == "idle":
        time.sleep(seconds)
        return Done()
    if arguments.period_us is not None:
        return tenant.serve(until_ns, arguments.period_us)
    return tenant.saturate(until_ns)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    end_with_parent()
    try:
        cuda = Cuda()
        kernel = Kernel(cuda, "memory" if arguments.kind == "memory" else "compute")
        tenant = Tenant(cuda, kernel, rounds=arguments.rounds or 1, depth=arguments.depth)
        rounds = arguments.rounds or tenant.calibrate(arguments.kernel_us)
        tenant = Tenant(cuda, kernel, rounds=rounds, depth=arguments.depth)
        before = kernel.counted()
        wfi_statuses = ask_for_unpreemptible_kernels(arguments.ask_wfi) if arguments.ask_wfi else []
        mark = None if arguments.mark_at is None else Mark(cuda, arguments.mark_at)
        say("ready", rounds=rounds, gpu=cuda.device_name, wfi_statuses=wfi_statuses)
        hear()

        start_ns = now_ns()
        if mark is not None:
            mark.start()
        done = work(arguments, tenant, arguments.seconds)
        if mark is not None:
            mark.join()
        end_ns = now_ns()
        counted = kernel.counted() - before
    except CudaError as error:
        say("error", code=error.code, reason=str(error))
        return 1
    arguments.output.write_text(
        json.dumps(
            {
                "rounds": rounds,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "launches": tenant.launches,
                "counted": counted,
                "done_ns": done.done_ns,
                "latency_us": [round(latency, 1) for latency in done.latency_us],
                "mark_ns": [] if mark is None else mark.t_ns,
            }
        )
    )
    say("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
