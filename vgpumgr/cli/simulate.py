# SPDX-License-Identifier: Apache-2.0
"""`simulate`: simulates tenants that share one engine, and reports what each got. It contacts no service."""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgpumgr.cli.failures import Status, printable
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin, table
from vgpumgr.errors import ArgumentError, OutputError, SimulatorMissingError

if TYPE_CHECKING:
    from vgpumgr.sim.report import Report
    from vgpumgr.sim.scenario import Loaded, Written

STANDARD_INPUT = "-"
EXTRA = ("cffi", "numpy", "yaml")
PLOTTING = "matplotlib"
"""Modules of the packages that the extra `sim` installs; the last is for plots only."""


class PlotFormat(StrEnum):
    """File formats of plots."""

    PNG = "png"
    SVG = "svg"
    HTML = "html"


def simulate(
    context: typer.Context,
    scenario: Annotated[
        str | None, typer.Argument(metavar="SCENARIO", help="a YAML file, or - for standard input")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="list the built-in examples")] = False,
    example: Annotated[str | None, typer.Option(metavar="NAME", help="print a built-in example")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="change a field: tenants.blue.weight=3"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="the first seed")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, metavar="N", help="play N seeds")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=V1,V2,...", help="play every combination of values, and rank them"),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="write the figures to this file")
    ] = None,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="write plots to this directory")] = None,
    plot_format: Annotated[PlotFormat | None, typer.Option("--format", help="format of the plots; default png")] = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Simulate tenants that share a GPU, and report what each tenant gets.

    The scheduler is the kernel module's own, or one of the baselines.
    Exit status 0: all targets of the scenario are met; 8: a target is missed.
    """
    session = begin(context, output)
    _require(plots=plots is not None)
    if sum((listed, example is not None, scenario is not None)) > 1:
        raise ArgumentError("give one of SCENARIO, --list and --example; `--example NAME >mine.yaml` makes a scenario")
    if plot_format is not None and plots is None:
        raise ArgumentError("--format has no meaning without plots; give --plots DIR as well")
    if listed:
        _list(session)
        return
    if example is not None:
        from vgpumgr.sim import examples

        session.print(examples.text(example))
        return
    if scenario is None:
        raise ArgumentError("no scenario; give a YAML file, or start from one of `vgpumgr simulate --list`")
    given = [*(settings or ())]
    given += [f"{name}={value}" for name, value in (("seed", seed), ("seeds", seeds)) if value is not None]
    if sweep:
        if plots:
            raise ArgumentError("--plots has no meaning for a sweep; plot one of its points with --set")
        met = _sweep(session, _written(scenario), given, sweep, json_file)
    else:
        met = _one(session, _written(scenario).loaded(given), json_file, _folder(plots), plot_format or PlotFormat.PNG)
    raise typer.Exit(Status.OK if met else Status.WARNINGS)


def _require(*, plots: bool) -> None:
    """Raise SimulatorMissingError with what to install if a part of the simulator is missing."""
    for module in (*EXTRA, PLOTTING) if plots else EXTRA:
        if importlib.util.find_spec(module) is None:
            raise SimulatorMissingError(
                f"{module} is not installed; run `make setup` in a checkout, or install vgpumgr with its extra `sim`"
            )
    try:
        importlib.import_module("vgpumgr.sim.engine")
    except ImportError as error:  # the error of a missing extension already says how to compile it
        raise SimulatorMissingError(" ".join(str(error).split())) from None


def _list(session: Session) -> None:
    from vgpumgr.sim import examples, scenario

    rows = [(name, scenario.read(examples.text(name), name).scenario.title) for name in examples.names()]
    if session.output == Output.JSON:
        session.print_json([{"name": name, "title": title} for name, title in rows])
    else:
        session.print(table(("EXAMPLE", "WHAT IT SHOWS"), rows))


def _written(name: str) -> "Written":
    from vgpumgr.sim import document, scenario

    if name != STANDARD_INPUT:
        return scenario.written(Path(name))
    return scenario.Written(sys.stdin.read(document.MAX_BYTES + 1), "standard input")


def _one(
    session: Session, loaded: "Loaded", json_file: str | None, folder: Path | None, plot_format: PlotFormat
) -> bool:
    """Return whether all targets are met."""
    from vgpumgr.sim.play import Exclusives, play_all
    from vgpumgr.sim.report import report, to_json

    with _progress() as told:
        played = play_all(loaded, exclusives=Exclusives(), progress=told)
        found = report(loaded.scenario, played)
    content = to_json(found)
    _save(json_file, content)
    if session.output == Output.JSON:
        session.print_json(content)
    else:
        session.print(_text(found))
    if folder is not None:
        from vgpumgr.sim import page, plots

        made = plots.plots(loaded.scenario, played)
        if plot_format == PlotFormat.HTML:
            files = [page.save(found, made, folder)]
        else:
            files = [plots.save(plot, folder, plot_format) for plot in made]
        session.note("written: " + ", ".join(str(file) for file in files))
    return found.met


def _text(found: "Report") -> str:
    from vgpumgr.sim.notes import notes
    from vgpumgr.sim.report import LATENCIES, SHARES, latency_rows, share_rows

    parts = ["\n".join(printable(line) for line in (found.scenario.title, *notes(found)) if line) + "\n"]
    parts.append(table(SHARES, share_rows(found)))
    if rows := latency_rows(found):
        parts.append(table(LATENCIES, rows))
    if found.verdicts:
        parts.append(
            table(("TARGET", "WORST SEED"), [("met" if one.met else "missed", str(one)) for one in found.verdicts])
        )
    return "\n".join(parts)


def _sweep(
    session: Session, written: "Written", given: list[str], wanted: Sequence[str], json_file: str | None
) -> bool:
    """Return whether the best point meets all targets."""
    from vgpumgr.sim.play import Exclusives, play_all
    from vgpumgr.sim.quantity import format_percent
    from vgpumgr.sim.report import report
    from vgpumgr.sim.sweep import OBJECTIVE, axes_of, overloads_of, sweep, to_json

    axes = axes_of(wanted)
    exclusives = Exclusives()
    with _progress() as told:

        def simulate(settings: list[str], part: Callable[[float], None]) -> "Report":
            loaded = written.loaded(given, settings)
            return report(loaded.scenario, play_all(loaded, exclusives=exclusives, progress=part))

        points = sweep(axes, simulate, told)
    content = to_json(axes, points)
    _save(json_file, content)
    if session.output == Output.JSON:
        session.print_json(content)
        return not points[0].missed
    rows = [
        (
            str(rank + 1),
            *point.values,
            "-" if point.share_error is None else format_percent(point.share_error),
            "-" if point.report is None else f"{point.switches_per_s:.0f}",
            "; ".join(point.targets) or "-",
        )
        for rank, point in enumerate(points)
    ]
    header = ("RANK", *(axis.field for axis in axes), "SHARE ERROR", "SWITCHES/S", "TARGETS, WORST SEED")
    said = [f"ranked by: {OBJECTIVE}", *overloads_of(points)]
    session.print("\n".join(printable(line) for line in said) + "\n\n" + table(header, rows))
    return not points[0].missed


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """Show a progress bar if standard error is a terminal. Call the yielded function with the fraction done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)
        yield lambda part: bar.update(task, completed=part)


def _folder(name: str | None) -> Path | None:
    """Create the directory before the simulation starts. OutputError."""
    if name is None:
        return None
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{name}: {(error.strerror or str(error)).lower()}; give a directory for plots") from None
    return Path(name)


def _save(name: str | None, content: object) -> None:
    if name is None:
        return
    try:
        Path(name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{name}: {(error.strerror or str(error)).lower()}") from None
