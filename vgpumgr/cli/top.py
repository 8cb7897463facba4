# SPDX-License-Identifier: Apache-2.0
"""`top`: a live table of entitled and obtained shares."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.broker import DirectoryOption, find
from vgpumgr.cli.broker_top import broker_top
from vgpumgr.cli.kinds import checked_name
from vgpumgr.cli.session import JsonOutput, JsonOutputOption, Output, Session, begin, table
from vgpumgr.cli.units import format_us
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from datetime import datetime

    from vgpumgr.cli.usage_window import GpuKey, Row

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
REPORTS_S = 90.0
"""How long a table of --count or --once waits for hosts to report.

By default a host reports its counters every 45 to 75 s, and a host without a report for 90 s counts as offline.
"""


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.2, max=3600, metavar="S", help="seconds between samples")] = 5.0,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="print N tables and end")] = None,
    once: Annotated[bool, typer.Option("--once", help="print one table and end")] = False,
    host: Annotated[str | None, typer.Option(help="only this host")] = None,
    tenant: Annotated[str | None, typer.Option(help="only this tenant's rows")] = None,
    broker: Annotated[bool, typer.Option("--broker", help="show this host's broker, not the API")] = False,
    run_directory: DirectoryOption = None,
    output: JsonOutputOption = JsonOutput.TABLE,
) -> None:
    """Show the share that each tenant is entitled to, and the share that it got. Ctrl-C ends it.

    With --broker, LONGEST WAIT and GATES count from the start of the broker; the rest covers the interval.
    """
    from vgpumgr.cli.usage_window import Samples

    session = begin(context, output)
    for name, what in ((host, "host"), (tenant, "tenant")):
        if name is not None:
            checked_name(name, what)
    if once and count is not None:
        raise ArgumentError("--once is the same as --count 1; give one of them")
    if broker:
        if host is not None:
            raise ArgumentError("--host has no meaning for a broker; leave it out")
        broker_top(
            session, find(session, run_directory), interval_s=interval, count=1 if once else count, tenant=tenant
        )
        return
    if run_directory is not None:
        raise ArgumentError("--run-directory is only for a broker; give --broker as well")
    counted = once or count is not None
    left = 1 if count is None else count
    samples = Samples()
    shown: dict[GpuKey, datetime] | None = None
    # Always read all tenants: a tenant's share depends on who else works. A tenant's token reads only that tenant.
    samples.add(session.client.usage(host=host))
    deadline_s = _deadline_s(session, interval)
    try:
        while left:
            session.sleep(interval)
            samples.add(session.client.usage(host=host))
            rows = [row for row in samples.rows() if tenant in (None, row.tenant)]
            told = {(row.host, row.gpu): samples.reported_at(row.host, row.gpu) for row in rows}
            # A live display lists the tenants even before there are figures. With a fixed number of tables the
            # first table waits for figures, because a host whose counters do not move reports nothing new for minutes.
            awaited = counted and shown is None and not samples.complete(told)
            fresh = told != shown and not awaited
            late = counted and session.clock() >= deadline_s
            if fresh or late:
                _print(session, rows, once=once)
                shown = told
                left -= counted
                deadline_s = _deadline_s(session, interval)
    except KeyboardInterrupt:
        return


def _deadline_s(session: Session, interval_s: float) -> float:
    """Return the time at which a table is printed even if nothing new was reported."""
    return session.clock() + max(REPORTS_S, 3 * interval_s)


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
