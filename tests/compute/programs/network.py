# SPDX-License-Identifier: Apache-2.0
"""A user's program: trains and uses a small network with tinygrad. It runs by itself.

    DEV=CL python network.py train STEPS
    DEV=CL python network.py infer REQUESTS

Prints one JSON object: losses or outputs as exact hexadecimal floats, and the duration of each step in ms.
"""

import json
import sys
import time

import numpy as np
from tinygrad import Tensor
from tinygrad.engine.jit import TinyJit
from tinygrad.helpers import Context
from tinygrad.nn.optim import SGD

INPUTS, HIDDEN, OUTPUTS, BATCH = 64, 128, 10, 32


class Network:
    """Two layers. The weights depend on the seed alone."""

    def __init__(self, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        self.first = Tensor(numbers.normal(size=(INPUTS, HIDDEN)).astype(np.float32) * 0.1)
        self.second = Tensor(numbers.normal(size=(HIDDEN, OUTPUTS)).astype(np.float32) * 0.1)

    def __call__(self, rows: Tensor) -> Tensor:
        return rows.matmul(self.first).relu().matmul(self.second)


def train(steps: int) -> tuple[list[str], list[float]]:
    """Return the loss and the duration of each step."""
    network, numbers = Network(1), np.random.default_rng(2)
    optimizer = SGD([network.first, network.second], lr=0.05)

    @TinyJit
    def step(rows: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = network(rows).sparse_categorical_crossentropy(labels).backward()
        optimizer.step()
        return loss.realize()

    losses, took_ms = [], []
    with Context(TRAINING=1):
        for _ in range(steps):
            rows = Tensor(numbers.normal(size=(BATCH, INPUTS)).astype(np.float32)).realize()
            labels = Tensor(numbers.integers(0, OUTPUTS, size=(BATCH,)).astype(np.int32)).realize()
            began = time.perf_counter()
            losses.append(float(step(rows, labels).item()).hex())
            took_ms.append((time.perf_counter() - began) * 1e3)
    return losses, took_ms


def infer(requests: int) -> tuple[list[str], list[float]]:
    """Return the sum of each request's outputs, and the duration of each request."""
    network, numbers = Network(1), np.random.default_rng(3)

    @TinyJit
    def answer(rows: Tensor) -> Tensor:
        return network(rows).softmax().realize()

    outputs, took_ms = [], []
    for _ in range(requests):
        rows = Tensor(numbers.normal(size=(BATCH, INPUTS)).astype(np.float32)).realize()
        began = time.perf_counter()
        outputs.append(float(answer(rows).numpy().sum(dtype=np.float64)).hex())
        took_ms.append((time.perf_counter() - began) * 1e3)
    return outputs, took_ms


if __name__ == "__main__":
    values, milliseconds = {"train": train, "infer": infer}[sys.argv[1]](int(sys.argv[2]))
    print(json.dumps({"values": values, "ms": milliseconds}))
