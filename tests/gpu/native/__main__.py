# SPDX-License-Identifier: Apache-2.0
"""`make bench-native`: all figures of native tenants on the GPU of this machine, in ten minutes.

Every figure stands beside the same program without fence and broker, in turns of the same run. Without a GPU it says so
and ends with status 3. Results: build/bench/native.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu.native.tenants import apply, broker, in_tenant, quantiles_ms, rates, running

OUTPUT = Path("build/bench/native.json")
NO_GPU = 3
SECONDS = 6.0
HEAD = '[accelerator]\nnvidia = 0\n[native]\nturns = "{turns}"\nperiod_us = {period_us}\n'


def configuration(tenants: dict[str, str], turns: str = "firmware", period_us: int = 40000) -> str:
    """Return a broker's configuration with these tenants. The text of a tenant is its fields."""
    head = HEAD.format(turns=turns, period_us=period_us)
    return head + "".join(
        f'[tenants.{name}]\nnative = true\nmemory = "30G"\n{text}\n' for name, text in tenants.items()
    )


def alone(folder: Path) -> dict[str, Any]:
    """Measure one program outside and inside a tenant, in turns."""
    native, fenced = [], []
    for _ in range(2):
        with running(folder, {"a": "train"}, {}) as programs:
            native.append(rates(programs, SECONDS)["a"])
        with (
            broker(folder, configuration({"a": "weight = 1"})),
            running(folder, {"a": "train"}, {"a": in_tenant(folder, "a")}) as programs,
        ):
            fenced.append(rates(programs, SECONDS)["a"])
    ratio = statistics.median(fenced) / statistics.median(native)
    return {"native_steps_s": native, "fenced_steps_s": fenced, "ratio": ratio, "target": 0.99}


def shared(folder: Path, weights: dict[str, int], turns: str, timeslice_us: int, reference: float) -> dict[str, Any]:
    """Measure trainings side by side, by weight."""
    fields = {name: f"weight = {weight}\ntimeslice_us = {timeslice_us}" for name, weight in weights.items()}
    kinds = dict.fromkeys(weights, "train")
    with (
        broker(folder, configuration(fields, turns)),
        running(folder, kinds, {name: in_tenant(folder, name) for name in weights}) as programs,
    ):
        time.sleep(1)
        found = rates(programs, 2 * SECONDS)
    total = sum(found.values())
    shares = {name: rate / total for name, rate in found.items()}
    wanted = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    return {
        "turns": turns,
        "shares": shares,
        "worst_points": max(abs(shares[name] - wanted[name]) for name in weights) * 100,
        "target_points": 1.5,
        "sum_of_alone": total / reference,
    }


def drivers_own(folder: Path, reference: float) -> dict[str, Any]:
    """Measure two trainings in the driver's own turns."""
    with running(folder, {"a": "train", "b": "train"}, {}) as programs:
        time.sleep(1)
        found = rates(programs, SECONDS)
    total = sum(found.values())
    return {"shares": {name: rate / total for name, rate in found.items()}, "sum_of_alone": total / reference}


def capped(folder: Path, period_us: int, reference: float) -> dict[str, Any]:
    """Measure a cap of 30 % on an idle GPU, and then a live cut to 10 %."""
    with (
        broker(folder, configuration({"a": "cap_permille = 300"}, period_us=period_us)) as control,
        running(folder, {"a": "train"}, {"a": in_tenant(folder, "a")}) as programs,
    ):
        time.sleep(1)
        kept = rates(programs, SECONDS)["a"] / reference
        apply(folder, configuration({"a": "cap_permille = 100"}, period_us=period_us))
        time.sleep(0.5)
        cut = rates(programs, SECONDS)["a"] / reference
        native = control.show()["tenants"][0]["native"]
    return {"period_us": period_us, "cap": 0.3, "kept": kept, "cut_to": 0.1, "kept_after_cut": cut, "broker": native}


def served(folder: Path, fields: str | None, trains: bool) -> dict[str, Any]:
    """Measure a service beside a training. `fields`: of the training's tenant; None: the driver's own turns."""
    kinds = {"serve": "serve"} | ({"train": "train"} if trains else {})
    if fields is None:
        with running(folder, kinds, {}) as programs:
            time.sleep(SECONDS)
            latencies = programs["serve"].latencies_ns(0)
    else:
        text = configuration({"serve": "weight = 20", "train": fields})
        with (
            broker(folder, text),
            running(folder, kinds, {name: in_tenant(folder, name) for name in kinds}) as programs,
        ):
            time.sleep(SECONDS)
            latencies = programs["serve"].latencies_ns(0)
    p50, p99 = quantiles_ms(latencies)
    return {"fields": fields, "trains": trains, "p50_ms": p50, "p99_ms": p99, "requests": len(latencies)}


def measure(folder: Path) -> dict[str, Any]:
    """Measure everything, the most important first, so a run that is cut short still has it."""
    found: dict[str, Any] = {"alone": alone(folder)}
    reference = statistics.median(found["alone"]["native_steps_s"])
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "driver": lambda: drivers_own(folder, reference),
        "firmware_3_1": lambda: shared(folder, {"a": 3, "b": 1}, "firmware", 5000, reference),
        "firmware_60_30_10": lambda: shared(folder, {"a": 60, "b": 30, "c": 10}, "firmware", 5000, reference),
        "cap_40ms": lambda: capped(folder, 40000, reference),
        "cap_100ms": lambda: capped(folder, 100000, reference),
        "gate_3_1": lambda: shared(folder, {"a": 3, "b": 1}, "gate", 20000, reference),
        "serve_alone": lambda: served(folder, None, trains=False),
        "serve_driver": lambda: served(folder, None, trains=True),
        "serve_weight": lambda: served(folder, "weight = 1", trains=True),
        "serve_cap": lambda: served(folder, "weight = 1\ncap_permille = 500", trains=True),
    }
    for name, step in steps.items():
        began = time.monotonic()
        try:
            found[name] = step()
        except RuntimeError as error:
            found[name] = {"failed": str(error)}
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(found[name])}", flush=True)
        OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not Path("/dev/nvidiactl").exists():
        print("no NVIDIA GPU here: nothing was measured", file=sys.stderr)
        return NO_GPU
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vgpu-", dir="/run") as folder:
        found = measure(Path(folder))
    print(json.dumps(found["alone"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
