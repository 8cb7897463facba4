# SPDX-License-Identifier: Apache-2.0
"""A report as one self-contained HTML file: tables, plots as inline SVG, and a text for each plot."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from vgpumgr.errors import OutputError
from vgpumgr.sim.notes import notes
from vgpumgr.sim.plots import Plot, svg
from vgpumgr.sim.report import LATENCIES, SHARES, Report, latency_rows, share_rows

FILE = "report.html"
_CSS = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --quiet: #595959; --line: #d0d0d0; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181c; --ink: #e8e8e8; --quiet: #a8adb5; --line: #3a3f47; }
}
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
p, figcaption, li { max-width: 46rem; } figcaption, .quiet { color: var(--quiet); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem .3rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-size: .8rem; color: var(--quiet); }
figure { margin: 1rem 0; } svg { height: auto; max-width: 100%; }
.missed { font-weight: 600; }
"""


def page(report: Report, plots: Sequence[Plot]) -> str:
    """Return the content of the file."""
    scenario = report.scenario
    title = html.escape(scenario.title or "Simulation")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_CSS}</style></head><body><main>",
        f"<h1>{title}</h1>",
    ]
    if scenario.about:
        parts.append(f"<p>{html.escape(scenario.about)}</p>")
    parts.append("<ul class=quiet>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes(report)) + "</ul>")
    if report.verdicts:
        rows = "".join(
            f"<li{'' if verdict.met else ' class=missed'}>{'met' if verdict.met else 'missed'}:"
            f" {html.escape(str(verdict))}</li>"
            for verdict in report.verdicts
        )
        parts.append(f"<h2>Targets, in the worst seed</h2><ul>{rows}</ul>")
    parts.append("<h2>Shares</h2>" + _table(SHARES, share_rows(report)))
    if rows_of_requests := latency_rows(report):
        parts.append("<h2>Requests</h2>" + _table(LATENCIES, rows_of_requests))
    return "\n".join([*parts, *map(_drawn, plots), "</main></body></html>\n"])


def save(report: Report, plots: Sequence[Plot], folder: Path) -> Path:
    """Write the page into a folder and return the file's path. OutputError."""
    path = folder / FILE
    try:
        path.write_text(page(report, plots), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return path


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _drawn(plot: Plot) -> str:
    caption = f'<figcaption id="{plot.name}-text">{html.escape(plot.text)}</figcaption>'
    return f"<h2>{html.escape(plot.title)}</h2><figure>{_inline(plot)}{caption}</figure>"


def _inline(plot: Plot) -> str:
    """Return the plot's SVG for use inside a page: without external references, labelled by its text."""
    text = svg(plot)
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{plot.name}-", text)
    return text.replace("<svg ", f'<svg role="img" aria-labelledby="{plot.name}-text" ', 1)
