# SPDX-License-Identifier: Apache-2.0
"""All experiments on one rig, as the JSON document `vgpumgr.gpu-evidence/1` (docs/evidence/schema.md)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.evidence import cheats, live, memory, models
from tests.gpu.evidence.bench import Bench, described
from vgpumgr.gpu import duel, shares
from vgpumgr.gpu.duel import Rig, RigError, Tenant

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
    """Return the GPU's name and the driver's version from libcuda. Raises RigError if nothing can be measured."""
    result = duel.run(rig, [Tenant(name="A", rounds=1000)], seconds=0.05).results[0]
    versions = [entry["version"] for entry in result.shim if entry["event"] == "driver"]
    return {"gpu": result.gpu, "driver": versions[-1] if versions else ""}


def commit() -> str:
    """The commit of the measuring sources, with a plus if they were changed. Empty outside a repository."""
    found = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def measure(
    rig: Rig,
    *,
    effort: Effort,
    told: Callable[[str], None] = lambda _: None,
    kept: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Run all experiments. Raises RigError.

    If T1 does not pass, equal tenants get unequal shares, and the tests after the shares are not run. A test that
    breaks off counts as not run, with the reason, and the next test follows. `kept` receives the document before each
    of these tests.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "rig": rig.kind,
        **identify(rig),
        "uuid": rig.device,
        "commit": commit(),
        "effort": asdict(effort),
    }
    tests = shares.run(rig, effort=effort, told=told)
    bench = Bench(rig, effort, told)
    for name, test in TESTS.items():
        kept(document | {"tests": in_order(tests)})
        tests[name] = _run(test, bench, tests["T1"])
    return document | {"tests": in_order(tests)}


def in_order(tests: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: tests[name] for name in sorted(tests, key=lambda name: (len(name), name))}


def _run(test: Callable[[Bench], dict[str, Any]], bench: Bench, t1: Mapping[str, Any]) -> dict[str, Any]:
    if t1["verdict"] != "pass":
        return described("not_run", f"T1: {t1['reason']}", {}, [])
    try:
        return test(bench)
    except RigError as error:
        return described("not_run", f"it broke off: {error.code}: {error.detail}", {}, [])
    except OSError as error:
        return described("not_run", f"it broke off: {error}", {}, [])
