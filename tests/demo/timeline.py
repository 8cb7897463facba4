# SPDX-License-Identifier: Apache-2.0
"""The use of the accelerator over time: a thread samples the kernel's counters."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vgpumgr.control.netlink import Control

INTERVAL_S = 0.5

Sample = dict[str, Any]
"""`at_s`; for each tenant, its lease time so far (`run_ns`) and its `weight`."""


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
    """Yield a list of samples, which grows while the body runs."""
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
    """Return each tenant's lease time between two samples, in ns."""
    return {name: run_ns - before["run_ns"].get(name, run_ns) for name, run_ns in after["run_ns"].items()}


def shares(of: Mapping[str, int]) -> dict[str, float]:
    """Return each tenant's part of the sum; all zero if the sum is zero."""
    total = sum(of.values())
    return {name: value / total if total else 0.0 for name, value in of.items()}
