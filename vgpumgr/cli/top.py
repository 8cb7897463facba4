# SPDX-License-Identifier: Apache-2.0
"""`top`: a live table of entitled and obtained shares."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.kinds import checked_name
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin, table
from vgpumgr.cli.units import format_us

if TYPE_CHECKING:
    from vgpumgr.cli.usage_window import Row

HEADER = (
    "TENANT",
    "HOST",
    "GPU",
    "WEIGHT",
    "TIMESLICE",
    "ENTITLED",
    "OBTAINED",
    "LONGEST RUN",
    "RUNS/S",
    "SWITCHES/S",
)
CLEAR = "\x1b[H\x1b[2J"
REPORTS_S = 60.0
"""How long `--once` waits for hosts to report twice; a host that is offline does not."""


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, metavar="S", help="seconds between samples")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="print one table and end")] = False,
    host: Annotated[str | None, typer.Option(help="only this host")] = None,
    tenant: Annotated[str | None, typer.Option(help="only this tenant's rows")] = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Show which share each tenant is entitled to and which it got. Ends with Ctrl-C."""
    from vgpumgr.cli.usage_window import Samples

    session = begin(context, output)
    for name, what in ((host, "host"), (tenant, "tenant")):
        if name is not None:
            checked_name(name, what)
    samples = Samples()
    # Always all tenants: the shares of one depend on who else works. A tenant's token sees its own only.
    samples.add(session.client.usage(host=host))
    deadline_s = session.clock() + max(REPORTS_S, 3 * interval)
    try:
        while True:
            session.sleep(interval)
            samples.add(session.client.usage(host=host))
            late = session.clock() >= deadline_s
            if once and not samples.complete and not late:
                continue
            _print(session, [row for row in samples.rows() if tenant in (None, row.tenant)], once=once)
            if once:
                return
    except KeyboardInterrupt:
        return


def _print(session: Session, rows: "Sequence[Row]", *, once: bool) -> None:
    if session.output == Output.JSON:
        content = [_json(row) for row in rows]
        session.print(json.dumps(content, indent=2 if once else None))
        return
    text = table(HEADER, (_cells(row) for row in rows))
    if not once:
        text = CLEAR + text if sys.stdout.isatty() else text + "\n"
    session.print(text)


def _cells(row: "Row") -> tuple[str, ...]:
    return (
        row.tenant,
        row.host,
        row.gpu,
        str(row.weight),
        format_us(row.timeslice_us),
        _percent(row.entitled_share),
        _percent(row.obtained_share),
        format_us(row.longest_run_ns / 1000),
        _rate(row.runs_per_s),
        _rate(row.switches_per_s),
    )


def _percent(share: Fraction | None) -> str:
    return "-" if share is None else f"{100 * float(share):.1f}%"


def _rate(rate: Fraction | None) -> str:
    return "-" if rate is None else f"{float(rate):.1f}"


def _json(row: "Row") -> dict[str, Any]:
    return {name: float(value) if isinstance(value, Fraction) else value for name, value in asdict(row).items()}
