# SPDX-License-Identifier: Apache-2.0
"""Plots of a simulation: which group had the engine when, shares over time, and the distribution of latencies.

Each is a matplotlib figure with a text that says what it shows. The colours are those of Okabe and Ito, which people
with any colour vision can distinguish on light and dark backgrounds. A tenant keeps its colour in all plots, and also
has its own line style and hatch.
"""

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vgpumgr.errors import OutputError
from vgpumgr.sim import schema
from vgpumgr.sim.due import Due
from vgpumgr.sim.figures import Stays
from vgpumgr.sim.played import GroupPlayed, Played
from vgpumgr.sim.quantity import format_percent, format_time

MOST_GROUPS = 12
GANTT_RUNS = 120
WIDTH_INCHES, ROW_INCHES, HEIGHT_INCHES = 9.0, 0.32, 3.6
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C3A", "#999999")
LINES = ("-", "--", "-.")  # dotted is reserved for references
HATCHES = ("", "//", "..", "xx")
# Placeholder for the text colour of the page that shows the plot.
_INK = "#111213"
_STYLE: dict[str, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), _INK
    ),
    "axes.facecolor": "none",
    "svg.fonttype": "none",  # keep text as text, for search and screen readers
    "svg.hashsalt": "vgpumgr",  # make files reproducible
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "font.size": 9.0,
}


@dataclass(frozen=True)
class Plot:
    """A plot. `name`: of its file. `text`: says what the plot shows. `of`: the part of the results that it covers."""

    name: str
    title: str
    of: str
    text: str
    drawing: Drawing


def _styled() -> AbstractContextManager[None]:
    return mpl.rc_context(cast("Any", _STYLE))


def plots(scenario: schema.Scenario, played: Sequence[Played]) -> list[Plot]:
    """Return the plots of a scenario: the first two show its first seed, the distributions show all seeds together."""
    first = played[0]
    owed = Due(scenario, {group.name: group.asked for group in first.groups if group.asked is not None})
    groups = first.groups[:MOST_GROUPS]
    with _styled():
        made = [_gantt(first, groups), _shares(scenario, first, groups, owed)]
        if any(len(group.latencies_ns) for group in groups):
            made.append(_latencies(scenario, played, groups))
    return made


def save(plot: Plot, folder: Path, suffix: str) -> Path:
    """Write a plot as png or svg into a folder and return the file's path. OutputError."""
    path = folder / f"{plot.name}.{suffix}"
    try:
        with _styled():
            plot.drawing.axes[0].set_title(f"{plot.title}: {plot.of}", loc="left")
            metadata = {"Date": None} if suffix == "svg" else {"Software": None}
            plot.drawing.savefig(path, format=suffix, dpi=150, metadata=metadata)
    except OSError as error:
        raise OutputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return path


def svg(plot: Plot) -> str:
    """Return a plot as SVG for a page: with a transparent background, and ink in the page's text colour."""
    file = io.BytesIO()
    with _styled():
        plot.drawing.savefig(file, format="svg", facecolor="none", metadata={"Date": None})
    return file.getvalue().decode().replace(_INK, "currentColor")


def _gantt(played: Played, groups: Sequence[GroupPlayed]) -> Plot:
    """Plot the beginning of the time after the warm-up, with no more runs than can be distinguished."""
    runs = played.runs[played.runs["start_ns"] >= played.start_ns]
    stop_ns = int(runs["start_ns"][GANTT_RUNS]) if len(runs) > GANTT_RUNS else played.end_ns
    drawing = Drawing(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * len(groups)), layout="constrained")
    axes = drawing.subplots()
    for row, group in enumerate(groups):
        own = runs[(runs["group"] == group.index) & (runs["start_ns"] < stop_ns)]
        axes.broken_barh(
            [
                (start, min(length, stop_ns - start))
                for start, length in zip(own["start_ns"], own["length_ns"], strict=True)
            ],
            (row - 0.4, 0.8),
            facecolors=COLOURS[row % len(COLOURS)],
            hatch=HATCHES[row // len(COLOURS) % len(HATCHES)],
        )
    axes.set_yticks(range(len(groups)), [group.name for group in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlim(played.start_ns, max(stop_ns, played.start_ns + 1))
    _time_axis(axes, "time")
    span = format_time(stop_ns - played.start_ns)
    return Plot(
        "runs",
        "Use of the engine",
        f"the first {span} after {_moment(played.start_ns)}, seed {played.seed}",
        f"Runs in the first {span} after {_moment(played.start_ns)}, seed {played.seed}: one row for"
        f" {_first(groups, played)}, one bar for each run.",
        drawing,
    )


def _shares(scenario: schema.Scenario, played: Played, groups: Sequence[GroupPlayed], owed: Due) -> Plot:
    window_ns = min(scenario.window, played.end_ns)
    edges = np.arange(0, played.end_ns + 1, window_ns)
    stays = Stays(played.runs)
    drawing = Drawing(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes = drawing.subplots()
    said = []
    for row, group in enumerate(groups):
        share = np.diff(stays.obtained_ns(group.index, edges)) / window_ns
        colour = COLOURS[row % len(COLOURS)]
        style = LINES[row // len(COLOURS) % len(LINES)]
        axes.stairs(100 * share, edges, color=colour, linestyle=style, label=group.name, linewidth=1.6, baseline=None)
        owed_share = np.diff(np.interp(edges, owed.at_ns, owed.time_ns(group.name))) / window_ns
        axes.stairs(100 * owed_share, edges, color=colour, linestyle=":", linewidth=1, baseline=None)
        if len(share):
            said.append(f"{group.name} between {format_percent(share.min())} and {format_percent(share.max())}")
    axes.plot([], [], color=_INK, linestyle=":", linewidth=1, label="entitled")
    warm_up = ""
    if played.start_ns:
        axes.axvspan(0, played.start_ns, color=_INK, alpha=0.12, linewidth=0, label="warm-up")
        warm_up = f" The warm-up of {format_time(played.start_ns)}, which figures leave out, is shaded."
    axes.set_ylim(0, None)
    axes.set_xlim(0, played.end_ns)
    axes.set_ylabel("share of the engine (%)")
    _time_axis(axes, "time")
    _legend(axes)
    kind = "its entitlement" if owed.exact else "an estimate of its entitlement"
    return Plot(
        "shares",
        "Shares over time",
        f"windows of {format_time(window_ns)}, seed {played.seed}",
        f"Share of the engine in windows of {format_time(window_ns)}, seed {played.seed}, for {_first(groups, played)};"
        f" dotted, {kind}. {'; '.join(said)}.{warm_up}",
        drawing,
    )


def _latencies(scenario: schema.Scenario, played: Sequence[Played], groups: Sequence[GroupPlayed]) -> Plot:
    """Plot latencies of finished requests, as a part of all requests: a curve with many unfinished ones ends low."""
    drawing = Drawing(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes = drawing.subplots()
    said, targets = [], False
    for row, group in enumerate(groups):
        same = [one for seed in played for one in seed.groups if one.name == group.name]
        latencies = np.sort(np.concatenate([one.latencies_ns for one in same]))
        alone = np.sort(
            np.concatenate([one.exclusive_ns for one in same if one.exclusive_ns is not None] or [latencies[:0]])
        )
        if group.exclusive_ns is None:
            continue
        asked = len(latencies) + sum(one.unfinished for one in same)
        colour = COLOURS[row % len(COLOURS)]
        style = LINES[row // len(COLOURS) % len(LINES)]
        done = f"{len(latencies)} of {asked} requests done"
        axes.step(
            latencies,
            np.arange(1, len(latencies) + 1) / max(asked, 1),
            where="post",
            color=colour,
            label=group.name if len(latencies) else f"{group.name}: {done}",
            linestyle=style,
            linewidth=1.6,
        )
        if len(alone):
            axes.ecdf(alone, color=colour, linestyle=":", linewidth=1)
        for bound_ns in _bounds_ns(scenario, group):
            axes.plot([bound_ns], [0.99], color=colour, marker="X", markersize=8, markeredgecolor=_INK, clip_on=False)
            targets = True
        if not len(latencies):
            said.append(f"{group.name}: {done}")
            continue
        half, most = np.quantile(latencies, [0.5, 0.99])
        said.append(f"{group.name}: {done}, of these p50 {format_time(half)}, p99 {format_time(most)}")
    axes.plot([], [], color=_INK, linestyle=":", linewidth=1, label="alone")
    if targets:
        axes.plot([], [], color=_INK, marker="X", markersize=8, linestyle="", label="target of p99")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1)
    axes.set_ylabel("part of the requests")
    _time_axis(axes, "time from arrival until done")
    _legend(axes)
    seeds = f"all {len(played)} seeds together" if len(played) > 1 else f"seed {played[0].seed}"
    crosses = " Crosses are p99 targets; a curve should pass them on the left." if targets else ""
    return Plot(
        "latencies",
        "Latency of requests",
        seeds,
        f"Part of the requests of {seeds} that were done within a time; dotted, on an engine of its own."
        f" {'; '.join(said)}.{crosses}",
        drawing,
    )


def _bounds_ns(scenario: schema.Scenario, group: GroupPlayed) -> list[int]:
    """Return the p99 targets of a group."""
    names = ("*", group.name, scenario.tenants[group.tenant].name)
    return [target.p99 for target in scenario.targets if target.p99 is not None and target.tenant in names]


def _first(groups: Sequence[GroupPlayed], played: Played) -> str:
    total = len(played.groups)
    return f"each of {total} tenants" if len(groups) == total else f"the first {len(groups)} of {total} tenants"


def _moment(time_ns: float) -> str:
    return format_time(time_ns) if time_ns else "0"


def _time_axis(axes: Any, label: str) -> None:
    axes.set_xlabel(label)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _moment(value)))
    axes.grid(axis="both", alpha=0.25, linewidth=0.6)


def _legend(axes: Any) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
