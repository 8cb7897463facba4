# SPDX-License-Identifier: Apache-2.0
"""`host probe-gpu`: measures which settings this host's driver and GPU honour, and what they can enforce."""

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.failures import Status, lines, status
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, begin, complain, table
from vgpumgr.errors import ProbeRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vgpumgr.cli.session import Session

_TESTS = {
    "T1": "equal tenants get equal shares",
    "T2": "shares follow timeslices",
    "T4": "idle time goes to tenants that have work",
    "T10": "what a switch costs",
    "T11": "another process can stop and resume a tenant",
}


def _names(names: list[str] | None) -> list[str] | None:
    for name in names or ():
        if not name.strip() or re.fullmatch(r"-\d+", name):
            raise typer.BadParameter(f"{name!r} is neither an index nor a UUID")
    return names


def _time(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a time")
    return seconds


def probe_gpu(
    context: typer.Context,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="UUID|INDEX", callback=_names, help="only this GPU; may be repeated"),
    ] = None,
    repeats: Annotated[int, typer.Option(min=3, max=100, help="measurements of each setting")] = 5,
    seconds: Annotated[
        float, typer.Option(min=1, max=600, metavar="S", callback=_time, help="length of each measurement")
    ] = 2.0,
    json: Annotated[bool, typer.Option("--json", help="the same as -o json")] = False,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Measure whether this host's NVIDIA GPUs honour a timeslice per tenant; about three minutes each.

    The GPU must be idle. None of its settings is changed. If the host has our agent, results measured by root are
    stored for it. Exit status 0: measured; 8: measured, but inconclusive; any other: a GPU could not be measured, and
    the error says why.
    """
    from vgpumgr.gpu import discovery
    from vgpumgr.gpu.probe import document, probe, refused
    from vgpumgr.gpu.shares import Effort

    session = begin(context, JsonOutput.JSON if json else output)
    effort = Effort(repeats=repeats, seconds=seconds)
    found: list[dict[str, Any]] = []
    refusals: list[ProbeRefusedError] = []
    try:
        with discovery.opened() as nvml:
            for one in discovery.chosen(nvml.gpus(), gpu or ()):
                try:
                    found.append(probe(nvml, one, rig=session.rig, effort=effort, told=session.note))
                except ProbeRefusedError as error:
                    refusals.append(error)
                    found.append(refused(one, error))
    except ProbeRefusedError as error:
        if session.output != JsonOutput.JSON:
            raise
        session.print_json(document(found, error))
        raise typer.Exit(status(error)) from None
    _keep(session, found)
    if session.output == JsonOutput.JSON:
        session.print_json(document(found))
    else:
        session.print("\n".join(_text(one) for one in found if one["refused"] is None))
        for refusal in refusals:
            complain("\n".join(lines(refusal)))
    raise typer.Exit(_status(found, refusals))


def _keep(session: "Session", found: "Sequence[dict[str, Any]]") -> None:
    """Store the results for the agent, if this host has one. They are printed even if storing fails."""
    from vgpumgr import probe_results
    from vgpumgr.control.sysfs import HostPaths

    directory = HostPaths(session.root).probes
    if not directory.parent.is_dir():
        return
    try:
        for path in probe_results.store(directory, found):
            session.note(f"stored in {path}")
    except OSError as error:
        session.note(f"not stored for the agent: {error.filename or directory}: {error.strerror}")


def _status(found: "Sequence[dict[str, Any]]", refusals: "Sequence[ProbeRefusedError]") -> Status:
    if refusals:
        return status(refusals[0])
    return Status.OK if all(one["conclusive"] for one in found) else Status.WARNINGS


def _text(one: dict[str, Any]) -> str:
    gpu, tests = one["gpu"], one["tests"]
    rows = _each_reason_once(
        (name, str(tests[name]["verdict"]), what, tests[name]["reason"] if tests[name]["reason"] != what else "")
        for name, what in _TESTS.items()
    )
    shares = [
        (
            *(_us(us) for us in setting["timeslice_us"].values()),
            f"{setting['expected']:.1%}",
            _interval(setting["share"]),
        )
        for name in ("T1", "T2")
        for setting in tests[name]["settings"]
    ]
    finer, cost = one["granularity"]["finer_than_us"], one["switch_cost_us"]
    words = _each_reason_once(
        (word["member"], word["word"], str(word["use"]), word["because"]) for word in one["enforcement"]
    )
    parts = [
        "\n".join(
            (
                f"GPU {gpu['index']}  {gpu['name']}  {gpu['uuid']}  driver {gpu['driver']}",
                f"timeslices: {one['timeslices']}",
                f"gate: {one['gate']}\n",
            )
        ),
        table(("TEST", "VERDICT", "WHETHER", "BECAUSE"), rows),
        table(("TIMESLICE A", "B", "EXPECTED", "SHARE OF A, 95 % INTERVAL"), shares),
        "granularity: " + (f"finer than {finer} us" if finer else f"unknown: {one['granularity']['because']}") + "\n"
        f"switch cost: {_cost(cost)}\n{_gate(tests['T11']['figures'])}",
        table(("ENFORCEMENT", "MAY SAY", "USE", "BECAUSE"), words),
    ]
    if not one["conclusive"]:
        parts.insert(1, "inconclusive: the measurements do not decide; do not rely on them\n")
    return "\n".join(parts)


def _each_reason_once(rows: "Iterable[tuple[str, str, str, str]]") -> list[tuple[str, str, str, str]]:
    """Replace a reason (the last cell) that an earlier row gave by a reference to that row."""
    said: dict[str, str] = {}
    shown = []
    for name, word, use, because in rows:
        shown.append((name, word, use, f"see {said[because]}" if because in said else because))
        if because:
            said.setdefault(because, name)
    return shown


def _cost(cost: dict[str, float] | None) -> str:
    if cost is None:
        return "unknown"
    if cost["low"] <= 0:
        return f"not distinguishable from 0; at most {max(cost['high'], 0):.0f} us"
    return f"{cost['mean']:.0f} us, {cost['low']:.0f} to {cost['high']:.0f}"


def _gate(figures: dict[str, Any]) -> str:
    if not figures:
        return ""
    calls = f"closing takes {figures['close_us']['mean']:.0f} us, opening {figures['open_us']['mean']:.0f} us"
    return f"gate: {calls}; at most {figures['longest_resume_us'] or 0:.0f} us until the end of the next kernel\n"


def _us(us: int | None) -> str:
    return "the driver's" if us is None else f"{us} us"


def _interval(share: dict[str, float]) -> str:
    return f"{share['mean']:.1%}, {share['low']:.1%} to {share['high']:.1%}"
