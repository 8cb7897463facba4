# SPDX-License-Identifier: Apache-2.0
"""A small network that tinygrad trains and runs, in turns directly and through a tenant that is alone.

The values must be the same, bit for bit; only the duration of a step differs.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

from tests.bench.compute.site import ROOT, Site, site
from tests.bench.sched.result import digest, target

CONFIGURATION = """
[tenants.alone]
weight = 100
"""
PROGRAM = ROOT / "tests" / "compute" / "programs" / "network.py"
TURNS, STEPS, WARM = 7, 200, 20
LEAST = 0.95


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure training and inference, `TURNS` times each way."""
    turns, steps = (1, 30) if quick else (TURNS, STEPS)
    table: dict[str, dict[str, float]] = {}
    targets = []
    with site(CONFIGURATION) as running:
        for what in ("train", "infer"):
            took_ms: dict[str, list[float]] = {"direct": [], "tenant": []}
            same = True
            for _ in range(turns):
                values = {}
                for way, tenant in (("direct", None), ("tenant", "alone")):
                    values[way], ms = once(running, tenant, what, steps)
                    took_ms[way].append(ms)
                same = same and values["direct"] == values["tenant"]
            ratio = statistics.median(d / t for d, t in zip(took_ms["direct"], took_ms["tenant"], strict=True))
            table[what] = {way: round(statistics.median(ms), 3) for way, ms in took_ms.items()} | {
                "speed of direct's": round(ratio, 3)
            }
            targets.append(target(f"{what}: speed, of direct", f">= {LEAST}", ratio, met=ratio >= LEAST))
            targets.append(target(f"{what}: the same values", "1", float(same), met=same))
    return {
        "name": "A network of tinygrad through a tenant that is alone",
        "command": "make bench-compute",
        "model": "PoCL, whose threads run on the processors of this machine",
        "seeds": [1, 2, 3],
        "baselines": ["the same program on the same library, directly"],
        "hashes": {"program": digest(PROGRAM.read_text())},
        "figures": {"ms a step": table},
        "targets": targets,
        "losing": [f"{WARM} steps in which programs are compiled are left out"],
    }


def once(running: Site, tenant: str | None, what: str, steps: int) -> tuple[list[str], float]:
    """Return the values, and the median duration of a step in ms."""
    output = running.run(tenant, sys.executable, PROGRAM, what, str(steps), environment={"DEV": "CL"})
    found = json.loads(output.splitlines()[-1])
    return found["values"], statistics.median(found["ms"][min(WARM, steps // 2) :])
