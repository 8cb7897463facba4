# SPDX-License-Identifier: Apache-2.0
"""Who had the accelerator, over time: the kernel's counters, looked at again and again by a thread of its own."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vgpumgr.control.netlink import Control

INTERVAL_S = 0.5

Sample = dict[str, Any]
"""`at_s`; for each tenant its lease time so far and its weight: `run_ns`, `weight`."""


def look(control: Control, tenants: Sequence[str], since_s: float) -> Sample:
    (gpu,) = control.gpus()
    found = {tenant.name: tenant for tenant in control.tenants(gpu.name) if tenant.name in tenants}
    return {
        "at_s": round(time.monotonic() - since_s, 3),
        "run_ns": {name: tenant.run_ns for name, tenant in found.items()},
        "weight": {name: tenant.weight for name, tenant in found.items()},
    }


@contextmanager
def recorded(tenants: Sequence[str], since_s: float) -> Iterator[list[Sample]]:
    """Yield samples, which grow in number while the body runs."""
    samples: list[Sample] = []
    ended = threading.Event()

    def record() -> None:
        with Control() as control:
            while not ended.wait(INTERVAL_S):
                samples.append(look(control, tenants, since_s))

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def gained(before: Sample, after: Sample) -> Mapping[str, int]:
    """The lease time that each tenant had between two samples, ns."""
    return {name: run_ns - before["run_ns"].get(name, run_ns) for name, run_ns in after["run_ns"].items()}


def shares(of: Mapping[str, int]) -> dict[str, float]:
    """What each has of the sum; of nothing nobody has anything."""
    total = sum(of.values())
    return {name: value / total if total else 0.0 for name, value in of.items()}
