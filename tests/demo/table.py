# SPDX-License-Identifier: Apache-2.0
"""The live table: who is entitled to what, and who got it.

`python3 -m tests.demo.table` in a lab host prints it until interrupted.
"""

import argparse
import time

from tests.rig.gpu import Gpu
from tests.rig.window import Window

HEADER = (
    f"{'tenant':8} {'weight':>6} {'timeslice':>10} {'entitled':>9} {'obtained':>9} "
    f"{'longest run':>12} {'items/s':>8} {'switches/s':>10}"
)


def rows(window: Window) -> list[str]:
    """One line a tenant for what happened between the two ends of `window`."""
    lines = []
    for name, tenant in sorted(window.after.items()):
        lines.append(
            f"{name:8} {tenant.weight:6} {tenant.timeslice_us / 1000:7.1f} ms "
            f"{100 * window.entitled[name]:8.1f}% {100 * window.share[name]:8.1f}% "
            f"{tenant.longest_run_ns / 1e6:9.2f} ms {window.items_per_s[name]:8.0f} "
            f"{window.switches_per_s[name]:10.0f}"
        )
    return lines


def show(gpu: Gpu, *, seconds: int, title: str) -> Window:
    """Print a table every second for `seconds`; return the window over all of them."""
    print(f"\n{title}\n{HEADER}", flush=True)
    whole = gpu.window()
    for _ in range(seconds):
        part = gpu.window()
        time.sleep(1)
        part.close()
        print("\n".join(rows(part)), flush=True)
        print("-" * len(HEADER), flush=True)
    whole.close()
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description="Who is entitled to what, and who got it; until Ctrl-C.")
    parser.parse_args()
    gpu = Gpu.attached()
    try:
        while True:
            show(gpu, seconds=10, title="accelerator 0000:00:10.0")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
