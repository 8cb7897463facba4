# SPDX-License-Identifier: Apache-2.0
"""Probes one GPU: checks that it is idle and suitable, runs the short tests, and says what they prove.

The document of a GPU is described by docs/probe-gpu.schema.json. If a process that is not ours appears on the GPU
during the measurement, the whole measurement is void.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu import gate, shares
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.gpu.enforcement import Verdict, answer, conclusive, gate_answer, granularity, words
from vgpumgr.gpu.refusals import Refusal, refuse

if TYPE_CHECKING:
    from vgpumgr.gpu.discovery import Gpu, GpuProcess, Nvml

SCHEMA = "vgpumgr.probe-gpu/1"
LOOK_EVERY_S = 0.2
BRANCHES = range(515, 611)
"""The driver branches whose structures the shim knows: native/rm_abi.h."""


class Watch:
    """Watches the processes on a GPU all the time. Processes announced with `ours` belong there."""

    def __init__(self, nvml: Nvml, gpu: Gpu) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._ours: set[int] = set()
        self._seen: dict[int, GpuProcess] = {}
        self._failed: ProbeRefusedError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_until_over, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def ours(self, pid: int) -> None:
        self._ours.add(pid)

    def check(self) -> None:
        """Refuse the GPU if another process was seen, or if watching failed. Call after the watch."""
        if self._failed is not None:
            raise self._failed
        others = [process for pid, process in self._seen.items() if pid not in self._ours]
        if others:
            raise refuse(
                Refusal.BUSY,
                f"GPU {self._gpu.index} ({self._gpu.uuid}) was used during the measurement, by"
                f" {', '.join(map(str, others))}; the results are void",
            )

    def _look_until_over(self) -> None:
        over = False
        while not over:
            over = self._over.wait(LOOK_EVERY_S)
            try:
                found = self._nvml.processes(self._gpu)
            except ProbeRefusedError as error:
                self._failed = error
                return
            except Exception as error:
                self._failed = refuse(
                    Refusal.NVML_FAILED,
                    f"GPU {self._gpu.index} ({self._gpu.uuid}): its processes could not be watched, so the results are"
                    f" void: {type(error).__name__}: {error}",
                )
                return
            self._seen |= {process.pid: process for process in found}


def probe(
    nvml: Nvml,
    gpu: Gpu,
    *,
    rig: Rig | None = None,
    effort: shares.Effort = shares.SHORT,
    told: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the document of one GPU. ProbeRefusedError. `rig`: replaces the real device in tests."""
    nvml.check(gpu)
    watch = Watch(nvml, gpu)
    try:
        with watch:
            measured = replace(rig or Rig(), device=gpu.uuid, on_child=watch.ours)
            tests = shares.run(measured, effort=effort, told=told)
            tests["T11"] = _t11(tests, measured, effort, told)
    except RigError as error:
        watch.check()  # another process may be the cause
        code, detail = Refusal(f"probe.{error.code}"), error.detail
        if code == Refusal.DRIVER_UNKNOWN:
            detail += f"; known are the branches {BRANCHES[0]} to {BRANCHES[-1]}"
        raise refuse(code, f"GPU {gpu.index} ({gpu.uuid}): {detail}") from None
    watch.check()
    return described(gpu) | {
        "refused": None,
        "conclusive": conclusive(tests),
        "effort": asdict(effort),
        "timeslices": answer(tests),
        "tests": tests,
        "granularity": asdict(granularity(tests)),
        "gate": gate_answer(tests),
        "switch_cost_us": tests["T10"]["figures"].get("switch_cost_us"),
        "enforcement": [asdict(word) for word in words(tests)],
    }


def _t11(
    tests: dict[str, dict[str, Any]], rig: Rig, effort: shares.Effort, told: Callable[[str], None]
) -> dict[str, Any]:
    """Run T11, but stop no channels on a rig that does not serve equal tenants alike."""
    if tests["T1"]["verdict"] != Verdict.PASS:
        reason = f"T1: {tests['T1']['reason']}"
        return {"verdict": Verdict.NOT_RUN, "reason": reason, "figures": {}, "settings": []}
    return gate.run(rig, effort=effort, told=told)


def refused(gpu: Gpu, error: ProbeRefusedError) -> dict[str, Any]:
    """Return the document of a GPU that could not be probed."""
    return described(gpu) | {"refused": _reason(error)}


def described(gpu: Gpu) -> dict[str, Any]:
    return {"gpu": {name: getattr(gpu, name) for name in ("index", "uuid", "name", "address", "driver")}}


def document(gpus: list[dict[str, Any]], failed: ProbeRefusedError | None = None) -> dict[str, Any]:
    """Combine the GPUs' documents. `failed`: why no GPU could be probed at all."""
    return {"schema": SCHEMA, "gpus": gpus, "refused": None if failed is None else _reason(failed)}


def _reason(error: ProbeRefusedError) -> dict[str, str]:
    return {"code": str(error.code), "detail": str(error)}
