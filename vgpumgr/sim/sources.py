# SPDX-License-Identifier: Apache-2.0
"""Simulated work: host programs that launch kernels on a slice.

A host program launches kernels in order and runs ahead of the engine, as real launch queues allow. Launching kernel i
takes `launch_ns[i]` of host time; then the kernel is in the slice's queue. The host stops in three cases: while the
queue holds `queue_depth` kernels; after a kernel with `sync` until all kernels before it are done (then `sync_ns` of
host time pass); and at the end of a request. A request's result is its last kernel; the next request begins after it.
With `arrivals_ns` (open loop) requests arrive at those times and wait in order until the program is free. Without it
(closed loop) the next request begins `think_ns` after the last one.

A program's actions and its *statements* are separate. The scheduler is told `claims` (more follows, end of request) and
`hint_ns` (how long this kernel will take), which may be lies.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Backlog", "Claim", "Program", "requests_of_one_kernel"]

Times = int | Sequence[int] | npt.NDArray[Any]

# With this limit no sum of times in a simulation comes near the end of 64 bits.
TIME_MAX_NS = 2**60


class Claim(enum.IntFlag):
    """What a kernel's launch says about the next kernels. The values are those of the C side."""

    NONE = 0
    MORE_FOLLOWS = 1
    END_OF_REQUEST = 2


def _times(what: str, values: Times, length: int, *, least: int = 0) -> npt.NDArray[np.uint64]:
    """Return one time for all, or `length` times, as an array for C."""
    array = np.asarray(values)
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{what}: give whole nanoseconds, not {array.dtype}")
    if array.ndim == 0:
        array = np.full(length, array)
    if array.shape != (length,):
        raise ValueError(f"{what}: give one number or {length}, not an array of shape {array.shape}")
    if array.size and (int(array.min()) < least or int(array.max()) > TIME_MAX_NS):
        raise ValueError(f"{what}: every value must lie in {least}..{TIME_MAX_NS}")
    return np.ascontiguousarray(array, dtype=np.uint64)


def _small(what: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(f"{what}: {value} is not in {least}..{most}")
    return int(value)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A source in the form that C uses. Its owner keeps every array alive."""

    work_ns: npt.NDArray[np.uint64]
    launch_ns: npt.NDArray[np.uint64]
    sync_ns: npt.NDArray[np.uint64]
    hint_ns: npt.NDArray[np.uint64]
    kernel_id: npt.NDArray[np.uint32]
    sync: npt.NDArray[np.uint8]
    claims: npt.NDArray[np.uint8]
    request_first: npt.NDArray[np.uint32]
    think_ns: npt.NDArray[np.uint64]
    arrivals_ns: npt.NDArray[np.uint64]
    is_open: bool
    endless: bool
    count: int
    start_ns: int
    queue_depth: int
    work_jitter_permille: int
    host_jitter_permille: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A host program; see the module. Arrays have one entry per kernel unless said otherwise.

    work_ns: time of the kernel on an engine of its own, >= 1
    launch_ns: host time to launch it
    sync: the host waits for this kernel (and so for all before it)
    sync_ns: host time after that wait
    kernel_id: identity of the kernel, for predictors; default: its index
    claims: `Claim`s made to the scheduler; default: the truth
    hint_ns: the duration told to the scheduler, 0 for none (the default)
    requests: index of the first kernel of each request, beginning with 0; default: all kernels
        are one request. Requests are issued in this order, over and over.
    arrivals_ns: ascending, one per request, in any number. None: closed loop.
    think_ns: closed loop: the pause after a request; one for all, or one per request of `requests`
    count: closed loop: number of requests in all; None: without end
    start_ns: nothing happens before it
    queue_depth: number of kernels that the queue holds
    work_jitter_permille, host_jitter_permille: relative standard deviation of each execution, and
        of each launch and pause of the host (a bell of +-3.4 deviations)
    """

    work_ns: Times
    launch_ns: Times = 0
    sync: bool | Sequence[bool] | npt.NDArray[Any] = False
    sync_ns: Times = 0
    kernel_id: Sequence[int] | npt.NDArray[Any] | None = None
    claims: Sequence[int] | npt.NDArray[Any] | None = None
    hint_ns: Times = 0
    requests: Sequence[int] | npt.NDArray[Any] = (0,)
    arrivals_ns: Sequence[int] | npt.NDArray[Any] | None = None
    think_ns: Times = 0
    count: int | None = None
    start_ns: int = 0
    queue_depth: int = 1024
    work_jitter_permille: int = 0
    host_jitter_permille: int = 0

    def compile(self) -> Compiled:
        """Check all fields; a ValueError names the field at fault and what was expected."""
        work = np.asarray(self.work_ns)
        kernels = int(work.size)
        if kernels == 0:
            raise ValueError("work_ns: a program needs at least one kernel")
        if work.ndim == 0:
            work = work.reshape(1)
        first = _first_kernels(self.requests, kernels)
        nr_requests = len(first) - 1
        arrivals = np.zeros(0, dtype=np.uint64)
        if self.arrivals_ns is not None:
            if self.count is not None:
                raise ValueError("count: an open loop has as many requests as arrivals_ns; leave it out")
            arrivals = _times("arrivals_ns", self.arrivals_ns, int(np.asarray(self.arrivals_ns).size))
            if np.any(np.diff(arrivals.astype(np.int64)) < 0):
                raise ValueError("arrivals_ns: the times must ascend")
        count = len(arrivals) if self.arrivals_ns is not None else self.count
        return Compiled(
            work_ns=_times("work_ns", work, kernels, least=1),
            launch_ns=_times("launch_ns", self.launch_ns, kernels),
            sync_ns=_times("sync_ns", self.sync_ns, kernels),
            hint_ns=_times("hint_ns", self.hint_ns, kernels),
            kernel_id=_numbers("kernel_id", self.kernel_id, np.arange(kernels), 2**32 - 1, np.uint32),
            sync=_numbers("sync", np.broadcast_to(self.sync, kernels), np.zeros(0), 1, np.uint8),
            claims=_numbers("claims", self.claims, _true_claims(first), 3, np.uint8),
            request_first=first,
            think_ns=_times("think_ns", self.think_ns, nr_requests),
            arrivals_ns=arrivals,
            is_open=self.arrivals_ns is not None,
            endless=False,
            count=2**64 - 1 if count is None else _small("count", count, 0, 2**62),
            start_ns=_small("start_ns", self.start_ns, 0, TIME_MAX_NS),
            queue_depth=_small("queue_depth", self.queue_depth, 1, 65536),
            work_jitter_permille=_small("work_jitter_permille", self.work_jitter_permille, 0, 250),
            host_jitter_permille=_small("host_jitter_permille", self.host_jitter_permille, 0, 250),
        )


def _first_kernels(requests: Sequence[int] | npt.NDArray[Any], kernels: int) -> npt.NDArray[np.uint32]:
    first = np.asarray(requests)
    if first.ndim != 1 or first.size == 0 or not np.issubdtype(first.dtype, np.integer) or first[0] != 0:
        raise ValueError("requests: give the index of each request's first kernel, beginning with 0")
    if np.any(np.diff(first) <= 0) or int(first[-1]) >= kernels:
        raise ValueError(f"requests: the indices must ascend and stay below {kernels}, the number of kernels")
    return np.ascontiguousarray(np.append(first, kernels), dtype=np.uint32)


def _true_claims(first: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    claims = np.full(int(first[-1]), int(Claim.MORE_FOLLOWS))
    claims[first[1:] - 1] = int(Claim.END_OF_REQUEST)
    return claims


def _numbers(what: str, values: Any, default: npt.NDArray[Any], most: int, dtype: Any) -> npt.NDArray[Any]:
    array = default if values is None else np.asarray(values)
    if values is not None and default.size and array.shape != default.shape:
        raise ValueError(f"{what}: give one per kernel ({default.size}), not an array of shape {array.shape}")
    if not (np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_):
        raise ValueError(f"{what}: give whole numbers, not {array.dtype}")
    if array.size and (int(array.min()) < 0 or int(array.max()) > most):
        raise ValueError(f"{what}: every value must lie in 0..{most}")
    return np.ascontiguousarray(array, dtype=dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class Backlog:
    """Kernels of these sizes, over and over, with always `depth` of them in the queue.

    With `nap_every`, the host waits for that many kernels and then sleeps for `nap_ns`. (If `work_ns` is as long as a
    run may be, this is the overrun-and-nap attack.) Backlogs have no requests, except that each nap ends one.
    """

    work_ns: Times
    depth: int = 8
    start_ns: int = 0
    nap_every: int = 0
    nap_ns: int = 0
    kernel_id: int = 0
    hint_ns: int = 0
    work_jitter_permille: int = 0

    def compile(self) -> Compiled:
        work = np.atleast_1d(np.asarray(self.work_ns))
        if work.size == 0:
            raise ValueError("work_ns: a backlog needs at least one size")
        nap_every = _small("nap_every", self.nap_every, 0, 65536)
        requests = [0]
        if nap_every:
            kernels = math.lcm(int(work.size), nap_every)
            if kernels > 2**24:
                raise ValueError(f"nap_every: with {work.size} sizes the pattern has {kernels} kernels; use fewer")
            work = np.tile(work, kernels // int(work.size))
            requests = list(range(0, kernels, nap_every))
        elif self.nap_ns:
            raise ValueError("nap_ns: say with nap_every how often")
        program = Program(
            work_ns=work,
            kernel_id=np.full(work.size, self.kernel_id),
            claims=np.full(work.size, int(Claim.NONE)),
            hint_ns=self.hint_ns,
            requests=requests,
            think_ns=self.nap_ns,
            start_ns=self.start_ns,
            queue_depth=self.depth,
            work_jitter_permille=self.work_jitter_permille,
        ).compile()
        return Compiled(**{**vars(program), "endless": not nap_every})


def requests_of_one_kernel(arrivals_ns: Sequence[int] | npt.NDArray[Any], work_ns: Times, **others: Any) -> Program:
    """Return an open loop of requests with one kernel each. `work_ns` is one value for all, or values used in turn."""
    work = np.atleast_1d(np.asarray(work_ns))
    return Program(work_ns=work, requests=np.arange(max(work.size, 1)), arrivals_ns=arrivals_ns, **others)
