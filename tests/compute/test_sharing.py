# SPDX-License-Identifier: Apache-2.0
"""Shares of real compute on PoCL, by the scheduler's own counters. These count leases, whatever else the machine does.

The bound is the scheduler's: the longest timeslice, and the measured time by which a lease overran its end.
The work per leased second is printed and never judged, because the machine's processors also run everything else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.compute.test_run import Host, Running, until

ROOT = Path(__file__).resolve().parents[2]
QUEUEING = ROOT / "tests/compute/programs/queueing.py"
MS = 1_000_000
TIMESLICE_NS = 5 * MS
GRACE_NS = 2 * MS
SECONDS = 4.0


def start(host: Host, tenant: str, kernel_ms: float) -> Running:
    return Running(host.command(tenant, sys.executable, str(QUEUEING), str(kernel_ms)))


def counters(host: Host, *names: str) -> tuple[int, dict[str, dict[str, int]]]:
    found = host.control.show()
    stats: dict[str, dict[str, Any]] = {each["name"]: each["stats"] for each in found["tenants"]}
    return found["now_ns"], {name: stats[name] for name in names}


@pytest.fixture(scope="module")
def made() -> None:
    command = ["make", "-s", "-C", str(ROOT / "compute"), f"PYTHON={sys.executable}"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.long
@pytest.mark.parametrize("kernel_ms", [0.1, 1.0, 20.0])
def test_two_tenants_that_always_have_work_share_by_weight(made: None, tmp_path: Path, kernel_ms: float) -> None:
    with Host(tmp_path) as host:
        host.file.write_text(host.file.read_text().replace("[tenants.red]", "[tenants.red]\nweight = 1"))
        host.apply()
        with start(host, "blue", kernel_ms) as blue, start(host, "red", kernel_ms) as red:
            for name in ("blue", "red"):
                until(lambda name=name: host.tenant(name)["stats"]["leases"] > 10)  # type: ignore[misc]
            began_ns, before = counters(host, "blue", "red")
            time.sleep(SECONDS)  # the measured interval; the test waits for no event here
            ended_ns, after = counters(host, "blue", "red")
            work = {"blue": blue.end(), "red": red.end()}
        spent = {name: {key: after[name][key] - before[name][key] for key in after[name]} for name in after}
        window_ns = ended_ns - began_ns
        for name, figures in spent.items():
            per_second = work[name] / (host.tenant(name)["stats"]["leased_ns"] / 1e9)
            share = figures["leased_ns"] / window_ns
            print(f"{kernel_ms} ms {name}: share {share:.4f}, {per_second:.0f} kernels per leased second, {figures}")
        if any(figures["dries"] for figures in spent.values()):
            pytest.skip("on this machine a program did not get to fill its queue in time")
        longest_gate_ns = max(stats["longest_gate_ns"] for stats in after.values())
        bound_ns = TIMESLICE_NS + GRACE_NS + longest_gate_ns
        for name, due in (("blue", 0.75), ("red", 0.25)):
            # Both counter readings may be in the middle of a lease.
            assert abs(spent[name]["leased_ns"] - due * window_ns) <= 2 * bound_ns
