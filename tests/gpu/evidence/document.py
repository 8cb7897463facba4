# SPDX-License-Identifier: Apache-2.0
"""All experiments on one rig, as the JSON document `vgpumgr.gpu-evidence/1` (docs/evidence/schema.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tests.gpu.evidence import cheats, live, memory, models
from tests.gpu.evidence.bench import Bench, described
from vgpumgr.gpu import duel, shares
from vgpumgr.gpu.duel import Rig, Tenant

if TYPE_CHECKING:
    from vgpumgr.gpu.shares import Effort

SCHEMA = "vgpumgr.gpu-evidence/1"
TESTS: Mapping[str, Callable[[Bench], dict[str, Any]]] = {
    "T3": live.t3,
    "T5": cheats.t5,
    "T6": cheats.t6,
    "T7": cheats.t7,
    "T8": memory.t8,
    "T9": live.t9,
    "models": models.models,
}


def identify(rig: Rig) -> dict[str, str]:
    """Name of the GPU, and version of the driver as libcuda gave it. Raises RigError where nothing can be measured."""
    result = duel.run(rig, [Tenant(name="A", rounds=1000)], seconds=0.05).results[0]
    versions = [entry["version"] for entry in result.shim if entry["event"] == "driver"]
    return {"gpu": result.gpu, "driver": versions[-1] if versions else ""}


def measure(rig: Rig, *, effort: Effort, told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Runs everything. What cannot be told apart where equal tenants are unequal is not run. Raises RigError."""
    identity = identify(rig)
    tests = shares.run(rig, effort=effort, told=told)
    bench = Bench(rig, effort, told)
    for name, test in TESTS.items():
        if tests["T1"]["verdict"] == "pass":
            tests[name] = test(bench)
        else:
            tests[name] = described("not_run", f"T1: {tests['T1']['reason']}", {}, [])
    return {
        "schema": SCHEMA,
        "rig": rig.kind,
        **identity,
        "effort": asdict(effort),
        "tests": {name: tests[name] for name in sorted(tests, key=lambda name: (len(name), name))},
    }
