# SPDX-License-Identifier: Apache-2.0
"""The demo itself; runs in a lab host as root.

Two tenants with different weights and timeslices, one real guest each with a slice of the same accelerator,
saturating work in both; then a weight and a timeslice change while they work. Every figure and every check
ends in build/demo/summary.json; the exit status is 1 if a check failed.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.demo.table import show
from tests.rig.gpu import Gpu, the_gpu
from tests.rig.guest import Guest, Guests, libvirt_guests
from tests.rig.window import Window

SUMMARY = Path("build/demo/summary.json")
PHASE_S = 10
POINTS = 2.0  # how far a share may be from its entitlement under emulation, in points of the engine
GUEST_COMMAND = """
vgpu-guest verify --json && echo vgpu.verified=1
echo vgpu.saturating=1
vgpu-guest saturate --json --op delay --delay-us 500 --depth 900 --seconds {seconds}
"""


@dataclass
class Summary:
    """Figures and checks, as they come."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, ok: bool, **details: object) -> None:
        self.checks.append({"check": name, "ok": bool(ok), **details})
        shown = ", ".join(f"{key} {value}" for key, value in details.items())
        print(f"[{'ok' if ok else 'FAILED'}] {name}: {shown}", flush=True)

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ok": self.ok, "figures": self.figures, "checks": self.checks}, indent=2) + "\n")


def step(text: str) -> None:
    print(f"[{time.monotonic() - STARTED_S:5.1f} s] {text}", flush=True)


STARTED_S = time.monotonic()


def start_guests(guests: Guests, gpu: Gpu, *, seconds: int, keep: bool) -> dict[str, Guest]:
    """One guest per tenant, each with one slice; returns when both saturate their slice."""
    started = {}
    for tenant in ("blue", "green"):
        uuid = gpu.slice(tenant)
        step(f"guest of {tenant}: starting with slice {uuid}")
        command = GUEST_COMMAND.format(seconds=seconds)
        started[tenant] = guests.start(f"guest-{tenant}", slices=(uuid,), command=command, keep=keep)
    for tenant, guest in started.items():
        guest.wait_for(r"^vgpu.saturating=1", timeout_s=180)
        step(f"guest of {tenant}: results verified, saturating work begins")
    for device in gpu.slices().values():
        gpu.wait_queued(device.uuid)
    return started


def check_window(summary: Summary, phase: str, window: Window) -> None:
    """Entitled against obtained, and that runs are not cut short.

    How much longer than timeslice + chunk a run lasted is shown and not judged: here it says when the emulated
    processors were scheduled. `make test-time` asserts that bound in virtual time.
    """
    figures: dict[str, Any] = {}
    for name, tenant in window.after.items():
        runs = tenant.histogram.since(window.first.tenants[name].histogram)
        bound_ns = (tenant.timeslice_us + summary.figures["max_chunk_us"]) * 1000
        figures[name] = {
            "weight": tenant.weight,
            "timeslice_us": tenant.timeslice_us,
            "entitled_share": window.entitled[name],
            "obtained_share": window.share[name],
            "runs": runs.total,
            "runs_within_timeslice_and_chunk": sum(n for start_ns, n in runs if start_ns <= bound_ns),
            "longest_run_ns": tenant.longest_run_ns,
            "items_per_s": window.items_per_s[name],
            "switches_per_s": window.switches_per_s[name],
        }
        error = 100 * abs(window.share[name] - window.entitled[name])
        summary.check(
            f"{phase}: {name} gets its share",
            error <= POINTS,
            entitled=f"{100 * window.entitled[name]:.1f}%",
            obtained=f"{100 * window.share[name]:.1f}%",
        )
        # A bucket of the histogram begins at most a quarter below the lengths in it.
        lasted = sum(n for start_ns, n in runs if start_ns >= 750 * tenant.timeslice_us)
        summary.check(
            f"{phase}: runs of {name} last their timeslice",
            runs.total > 0 and lasted >= 0.95 * runs.total,
            timeslice=f"{tenant.timeslice_us} us",
            runs=runs.total,
            lasted=lasted,
            within_timeslice_and_chunk=figures[name]["runs_within_timeslice_and_chunk"],
        )
    summary.figures[phase] = figures


def check_guests(summary: Summary, guests: dict[str, Guest], gpu: Gpu) -> None:
    """What the guests themselves say about their work."""
    for tenant, guest in guests.items():
        line = guest.wait_for(r"^\{.*\"record\": ?\"saturate\".*\}\s*$", timeout_s=120).group(0)
        report = json.loads(line)
        summary.figures.setdefault("guests", {})[tenant] = report
        summary.check(
            f"guest of {tenant}: results verified, >= 8 items queued at every moment",
            "vgpu.verified=1" in guest.console() and report["mismatches"] == 0 and report["saturated"],
            items=report["items"],
            min_queued=report["min_queued"],
        )


def run(summary: Summary, *, keep: bool) -> None:
    step("loading vgpumgr.ko, giving it the PCI function 0000:00:10.0")
    with the_gpu(keep=keep) as gpu:
        described = gpu.control.gpu(gpu.address)
        summary.figures.update(kernel=platform.release(), engine=described.engine, max_chunk_us=described.max_chunk_us)
        gpu.tenant("blue", weight=300, timeslice_us=2000)
        gpu.tenant("green", weight=100, timeslice_us=5000)
        step("two tenants: blue weight 300 timeslice 2 ms, green weight 100 timeslice 5 ms")
        with libvirt_guests(keep=keep) as guests:
            seconds = 14400 if keep else 3 * PHASE_S + 10
            started = start_guests(guests, gpu, seconds=seconds, keep=keep)
            step("both guests work")
            first = show(gpu, seconds=PHASE_S, title="blue : green = 300 : 100, timeslices 2 ms and 5 ms")
            check_window(summary, "phase 1", first)
            gpu.tenant("green", weight=300)
            gpu.tenant("blue", timeslice_us=1000)
            step("changed live: green weight 100 -> 300, blue timeslice 2 ms -> 1 ms")
            time.sleep(1)
            second = show(gpu, seconds=PHASE_S, title="blue : green = 300 : 300, timeslices 1 ms and 5 ms")
            check_window(summary, "phase 2", second)
            if not keep:
                step("waiting for the guests to finish and report")
                check_guests(summary, started, gpu)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--keep", action="store_true", help="leave guests, slices and module as they are")
    options = parser.parse_args()
    summary = Summary()
    try:
        run(summary, keep=options.keep)
    except Exception as error:
        summary.check("the demo ran to its end", ok=False, error=repr(error))
        raise
    finally:
        summary.figures["seconds"] = round(time.monotonic() - STARTED_S, 1)
        summary.write(SUMMARY)
    print("\nRuns longer than timeslice and chunk are the emulated processors' doing: see make test-time.")
    passed = sum(check["ok"] for check in summary.checks)
    print(f"\n{passed} of {len(summary.checks)} checks ok, {summary.figures['seconds']} s", flush=True)
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
