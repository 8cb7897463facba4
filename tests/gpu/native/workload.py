# SPDX-License-Identifier: Apache-2.0
"""`python workload.py train|serve FILE`: a PyTorch program that counts its work in FILE.

It knows nothing of tenants, brokers and fences. FILE is mapped: two counters of 8 bytes (steps, and the number of
latencies that follow), then the latencies of requests in ns. After its warm-up, it begins at a line on standard input.
"""

from __future__ import annotations

import importlib
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any

LATENCIES = 200_000
BYTES = 16 + 8 * LATENCIES
PAUSE_S = 0.010


class Counter:
    """The program's counters, which an observer reads."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), BYTES)
        self._steps = self._latencies = 0

    def step(self) -> None:
        self._steps += 1
        struct.pack_into("=Q", self._memory, 0, self._steps)

    def latency(self, ns: int) -> None:
        if self._latencies < LATENCIES:
            struct.pack_into("=Q", self._memory, 16 + 8 * self._latencies, ns)
            self._latencies += 1
            struct.pack_into("=Q", self._memory, 8, self._latencies)
        self.step()


def train(counter: Counter) -> None:
    """Train a transformer of 12 layers x 1024, batch 64 x 128, bf16, with one synchronisation a step."""
    torch: Any = importlib.import_module("torch")
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 12).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(64, 128, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(batch).float().square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for _ in range(5):
        step()
    _wait_for_go()
    while True:
        step()
        counter.step()


def serve(counter: Counter) -> None:
    """Inference of 12 layers, batch 8, fp16. A request begins 10 ms after the answer to the last one."""
    torch: Any = importlib.import_module("torch")
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 12).cuda().half().eval()
    batch = torch.randn(8, 128, 1024, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for _ in range(20):
            model(batch)
        torch.cuda.synchronize()
        _wait_for_go()
        while True:
            began_ns = time.monotonic_ns()
            model(batch)
            torch.cuda.synchronize()
            counter.latency(time.monotonic_ns() - began_ns)
            time.sleep(PAUSE_S)


def _wait_for_go() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"train": train, "serve": serve}[sys.argv[1]](Counter(Path(sys.argv[2])))
