# SPDX-License-Identifier: Apache-2.0
"""One process of a live run: a service or a job, under the gate if it inherits one.

    python -m tests.gpu.gapfill.worker --model residual --kind inference --seconds 10 [--period-ms 20]

Says `ready` on standard output, begins at a line on standard input, and ends with what it did as one line of JSON:
`latency_ns` of each request that began after the first tenth, `done` requests in that time, `seconds` of it, and what
the gate cost. The GPU itself stores the number of items that are done where the gate sees it, at the end of each item.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.gpu.gapfill import models
from tests.gpu.gapfill.channel import SIZE
from tests.gpu.gapfill.client import VARIABLE, GateClient, GateGoneError
from vgpumgr.sched.core import ItemInfo

WARM_UP = 0.1
_MAPPED = 2


class StreamStore:
    """Makes the GPU store a number into a client's channel, in stream order."""

    def __init__(self, client: GateClient, stream: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._stream = ctypes.c_void_p(stream)
        address = ctypes.addressof(ctypes.c_char.from_buffer(client.end.words))
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(SIZE), ctypes.c_uint(_MAPPED))
        there = ctypes.c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(there), ctypes.c_void_p(address), ctypes.c_uint(0))
        self._there = ctypes.c_uint64(there.value + client.end.done_offset)

    def __call__(self, count: int) -> None:
        self._call("cuStreamWriteValue64_v2", self._stream, self._there, ctypes.c_uint64(count), ctypes.c_uint(0))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")


@dataclass
class Loop:
    """Makes requests one after the other. `wait` returns when all launched work is done. After each launch that the
    gate knows, `store` receives the number of known items.
    """

    steps: Sequence[Callable[[], None]]
    wait: Callable[[], None]
    client: GateClient | None = None
    store: Callable[[int], None] = lambda _: None
    clock: Callable[[], int] = time.monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    told: int = 0
    latencies_ns: list[tuple[int, int]] = field(default_factory=list)

    def request(self, began_ns: int) -> None:
        for number, step in enumerate(self.steps):
            known = self.client is None or self.client.ask(ItemInfo(kernel_id=number, more=True))
            step()
            if known:
                self.told += 1
                self.store(self.told)
        self.wait()
        self.latencies_ns.append((began_ns, self.clock() - began_ns))

    def run(self, seconds: float, period_ns: int) -> None:
        """Late requests begin at once. Their latency counts from the time when they were due."""
        start_ns = due_ns = self.clock()
        while due_ns < start_ns + seconds * 1e9:
            early_ns = due_ns - self.clock()
            if early_ns > 0:
                self.sleep(early_ns / 1e9)
            self.request(due_ns)
            due_ns = due_ns + period_ns if period_ns else self.clock()

    def report(self, seconds: float) -> dict[str, Any]:
        first_ns = self.latencies_ns[0][0] + int(WARM_UP * seconds * 1e9) if self.latencies_ns else 0
        counted = [length for began, length in self.latencies_ns if began >= first_ns]
        return {
            "latency_ns": counted,
            "done": len(counted),
            "seconds": (1 - WARM_UP) * seconds,
            "waited_ns": self.client.waited_ns if self.client else 0,
            "unnoticed": self.client.unnoticed if self.client else 0,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=sorted(models.MODELS))
    parser.add_argument("--kind", required=True, choices=("inference", "training"))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--period-ms", type=float, default=0)
    arguments = parser.parse_args()

    torch = importlib.import_module("torch")
    steps = getattr(models, arguments.kind)(arguments.model, "cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries choose their kernels in the first runs
            Loop(steps, stream.synchronize).request(0)
        loop = Loop(steps, stream.synchronize)
        if VARIABLE in os.environ:
            loop.client = GateClient.inherited()
            loop.store = StreamStore(loop.client, stream.cuda_stream)
        print("ready", flush=True)
        if not sys.stdin.readline():
            return 1
        try:
            loop.run(arguments.seconds, int(arguments.period_ms * 1e6))
        except GateGoneError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 1
    print(json.dumps(loop.report(arguments.seconds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
