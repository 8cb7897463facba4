# SPDX-License-Identifier: Apache-2.0
"""The headline pair: a PyTorch inference service beside a training loop, under three divisions of time.

high: answers one request every period, and its 99th percentile counts. low: trains without pause, and its steps count.
Each is compared with itself alone on the GPU. The figures are the result; no division is judged good or bad.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from tests.gpu.evidence.bench import Bench, described, statuses
from vgpumgr.gpu.duel import Duel, Tenant
from vgpumgr.gpu.statistics import interval

# Timeslices of high and low in us. None keeps libcuda's own.
DIVISIONS: dict[str, tuple[int | None, int | None]] = {
    "default": (None, None),
    "9:1": (18_000, 2_000),
    "1:9": (2_000, 18_000),
}
PERIOD_US = 20_000.0


def tenant(name: str, timeslice_us: int | None) -> Tenant:
    role = {"high": "service", "low": "training"}[name]
    return Tenant(
        name=name,
        rounds=1,
        timeslice_us=timeslice_us,
        period_us=PERIOD_US if name == "high" else None,
        program=("-m", "tests.gpu.evidence.torch_tenant", role),
    )


def models(bench: Bench) -> dict[str, Any]:
    if bench.rig.kind == "fake":
        return described("not_run", "a fake GPU runs no models", {}, [])
    if importlib.util.find_spec("torch") is None:
        return described("not_run", "PyTorch is not installed in this Python: pip install torch", {}, [])

    def beside(division: str) -> Duel:
        high_us, low_us = DIVISIONS[division]
        return bench.run([tenant("high", high_us), tenant("low", low_us)])

    runs = bench.repeat(
        "models",
        {
            "high alone": lambda: bench.run([tenant("high", None)]),
            "low alone": lambda: bench.run([tenant("low", None)]),
            **{name: (lambda name=name: beside(name)) for name in DIVISIONS},  # type: ignore[misc]
        },
    )
    alone_p99 = [duel.latency_us("high", 0.99) for duel in runs["high alone"]]
    alone_rate = [duel.rate("low") for duel in runs["low alone"]]
    figures: dict[str, Any] = {
        "high_alone_p99_us": interval(alone_p99).document(),
        "low_alone_steps_per_s": interval(alone_rate).document(),
    }
    settings = []
    for name, (high_us, low_us) in DIVISIONS.items():
        p99 = [duel.latency_us("high", 0.99) for duel in runs[name]]
        slower = interval([with_low / alone for with_low, alone in zip(p99, alone_p99, strict=True)])
        kept = interval([d.rate("low") / alone for d, alone in zip(runs[name], alone_rate, strict=True)])
        figures[name] = {"high_p99_against_alone": slower.document(), "low_steps_of_alone": kept.document()}
        settings.append(
            {
                "name": name,
                "timeslice_us": {"high": high_us, "low": low_us},
                "high_p99_us": interval(p99).document(),
                "samples": [round(value, 1) for value in p99],
                "status": statuses(runs[name]),
            }
        )
    return described("measured", "the figures are the result", figures, settings)
