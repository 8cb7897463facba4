# SPDX-License-Identifier: Apache-2.0
"""Draws the demo's results: `shares.svg` and `pictures.svg` in build/demo, and both with all checks in `index.html`.

Runs in the checkout after the lab host has ended: python -m tests.demo.page
"""

import html
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from tests.demo.summary import PATH
from tests.demo.timeline import Sample, gained, shares

WINDOW_SAMPLES = 6
COLOURS = {"blue": "#0072B2", "green": "#009E73"}
_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "vgpumgr",  # make the output reproducible
}
_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #d0d0d0; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
img { max-width: 100%; } .failed { color: #b00020; font-weight: 600; }
"""


def draw_shares(samples: Sequence[Sample], changes: Sequence[float]) -> Figure:
    """Draw entitled and obtained shares over time; an obtained share is that of the last few samples."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    times = [sample["at_s"] for sample in samples[WINDOW_SAMPLES:]]
    for tenant, colour in COLOURS.items():
        due = [100 * shares(sample["weight"])[tenant] for sample in samples[WINDOW_SAMPLES:]]
        pairs = zip(samples, samples[WINDOW_SAMPLES:], strict=False)
        obtained = [100 * shares(gained(before, after))[tenant] for before, after in pairs]
        axes.plot(times, obtained, color=colour, label=f"{tenant}, obtained")
        axes.plot(times, due, color=colour, linestyle=":", drawstyle="steps-post", label=f"{tenant}, entitled")
    for change in changes:
        axes.axvline(change, color="#999999", linewidth=0.8)
        axes.annotate("quota changed", (change, 97), fontsize=8, color="#595959")
    axes.set_ylim(0, 100)
    axes.set_xlabel("seconds since the demo began")
    axes.set_ylabel("% of the lease time")
    axes.legend(loc="lower left", ncols=2, frameon=False)
    return figure


def draw_pictures(folder: Path, pictures: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw what each tenant's program has computed in its VM."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for place, (tenant, picture) in zip(figure.subplots(1, len(pictures)), pictures.items(), strict=True):
        with Image.open(folder / picture["file"]) as image:
            place.imshow(image)
        place.set_title(f"{tenant}: frame {picture['frame']}", loc="left")
        place.set_axis_off()
    return figure


def page(summary: Mapping[str, Any]) -> str:
    """Return the text of index.html."""
    rows = "".join(
        f"<tr><td{'' if check['ok'] else ' class=failed'}>{'ok' if check['ok'] else 'FAILED'}</td>"
        f"<td>{html.escape(check['check'])}</td><td>{html.escape(_details(check))}</td></tr>"
        for check in summary["checks"]
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Two VMs compute on one accelerator</title>
<style>{_CSS}</style></head>
<body><h1>Two VMs compute on one accelerator</h1>
<p>Each runs an OpenCL program that knows nothing of the other. The kernel module lends them the accelerator in turns,
by the quotas of their tenants; blue's quota was cut while both worked.</p>
<img src="shares.svg" alt="Entitled and obtained shares over time">
<h2>What they computed</h2>
<p>Bit for bit what the accelerator's own library computes without us.</p>
<img src="pictures.svg" alt="The pictures that the programs in the two VMs have drawn">
<h2>Checks</h2><table><tr><th></th><th>check</th><th>figures</th></tr>{rows}</table></body></html>
"""


def _details(check: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in check.items() if name not in ("check", "ok"))


def main() -> int:
    folder = PATH.parent
    summary = json.loads(PATH.read_text())
    figures = summary["figures"]
    if len(figures.get("timeline", ())) <= WINDOW_SAMPLES or not figures.get("pictures"):
        print("there is nothing to draw: the demo ended before both VMs worked", file=sys.stderr)
        return 1
    with mpl.rc_context(_STYLE):
        draw_shares(figures["timeline"], figures["changes_s"]).savefig(folder / "shares.svg")
        draw_pictures(folder, figures["pictures"]).savefig(folder / "pictures.svg")
    (folder / "index.html").write_text(page(summary))
    print(f"pictures: {folder / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
