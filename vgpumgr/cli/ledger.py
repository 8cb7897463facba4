# SPDX-License-Identifier: Apache-2.0
"""`usage` and `unbooked`: the ledger that bills are made from, and the counts it lacks. See docs/usage.md."""

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.kinds import checked_name, moment
from vgpumgr.cli.session import Session, begin, dumped, table
from vgpumgr.cli.units import parse_instant
from vgpumgr.durations import is_duration
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vgpumgr.wire.usage import LedgerRow, UnbookedRow

WHO = ("ACCOUNT", "TENANT")
WHERE = ("HOST", "GPU")
QUANTITIES = ("SLICE-HOURS", "GIB-HOURS", "GRANTED-S", "ASSURED-S", "DUE-S", "RUN-S")


class UsageOutput(StrEnum):
    """How to print the ledger. json and csv have whole numbers."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class GranularityOption(StrEnum):
    """How much time a row covers, without importing the models for `--help`."""

    HOUR = "hour"
    DAY = "day"
    TOTAL = "total"


class ReasonOption(StrEnum):
    """Reasons why a count is not booked, without importing the models for `--help`."""

    UNATTRIBUTED = "unattributed"
    IMPLAUSIBLE = "implausible"


class ByOption(StrEnum):
    """What the rows are grouped by, without importing the models for `--help`."""

    ACCOUNT = "account"
    TENANT = "tenant"
    GPU = "gpu"


UsageOutputOption = Annotated[
    UsageOutput, typer.Option("--output", "-o", help="table for people, json and csv for programs")
]


def usage(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="from this hour on: 7d (ago), or like 2026-11-01T00:00:00Z")
    ] = "24h",
    until: Annotated[str, typer.Option(metavar="WHEN", help="before this hour")] = "0h",
    granularity: Annotated[
        GranularityOption, typer.Option(help="how much time a row covers")
    ] = GranularityOption.TOTAL,
    by: Annotated[
        ByOption, typer.Option(help="account: adds up its projects; gpu: splits by tenant, host and GPU")
    ] = ByOption.TENANT,
    tenant: Annotated[str | None, typer.Option(help="only this tenant, which may have been deleted")] = None,
    account: Annotated[str | None, typer.Option(help="only this account and its projects")] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="reproduce an old bill: leave out what was booked from this hour on"),
    ] = None,
    output: UsageOutputOption = UsageOutput.TABLE,
) -> None:
    """Show what was granted to and used by each tenant. Relative times count back from the start of this hour."""
    session = begin(context, output)
    for name, what in ((tenant, "tenant"), (account, "account")):
        if name is not None:
            checked_name(name, what)
    wanted: dict[str, Any] = {
        "since": _hour(session, since, "--since"),
        "until": _hour(session, until, "--until"),
        "granularity": granularity.value,
        "by": by.value,
        "tenant": tenant,
        "account": account,
        "as_of": None if as_of is None else _hour(session, as_of, "--as-of"),
    }
    if output is UsageOutput.CSV:
        _print_csv(session, session.client.export_ledger(**wanted))
        return
    rows = list(session.client.ledger(**wanted))
    if output is UsageOutput.JSON:
        session.print_json([dumped(row) for row in rows])
    else:
        with_gpu = by is ByOption.GPU
        header = ("SINCE", "UNTIL", *WHO, *(WHERE if with_gpu else ()), *QUANTITIES, "NOTE")
        session.print(table(header, (_cells(row, with_gpu=with_gpu) for row in rows)))
        if not rows:
            soon = moment(_this_hour(session) + timedelta(hours=1))
            session.note(
                f"nothing before {wanted['until']}; `--until {soon}` shows the present hour with the data known so far"
            )


def unbooked(
    context: typer.Context,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="from this hour on: 7d (ago), or like 2026-11-01T00:00:00Z")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="before this hour")] = None,
    host: Annotated[str | None, typer.Option(help="only counts of this host")] = None,
    tenant: Annotated[str | None, typer.Option(help="only counts under this tenant's name")] = None,
    reason: Annotated[ReasonOption | None, typer.Option(help="only counts left out for this reason")] = None,
    output: UsageOutputOption = UsageOutput.TABLE,
) -> None:
    """Show counts that the ledger does not have, because their owner is unknown or they are impossibly large."""
    session = begin(context, output)
    for name, what in ((tenant, "tenant"), (host, "host")):
        if name is not None:
            checked_name(name, what)
    wanted: dict[str, Any] = {
        "since": None if since is None else _hour(session, since, "--since"),
        "until": None if until is None else _hour(session, until, "--until"),
        "host": host,
        "tenant": tenant,
        "reason": reason and reason.value,
    }
    if output is UsageOutput.CSV:
        _print_csv(session, session.client.export_unbooked(**wanted))
        return
    rows = session.client.unbooked(**wanted)
    if output is UsageOutput.JSON:
        session.print_json([dumped(row) for row in rows])
    else:
        header = ("SINCE", *WHERE, "TENANT", "REASON", "DUE-S", "RUN-S")
        session.print(table(header, (_unbooked_cells(row) for row in rows)))


def _unbooked_cells(row: "UnbookedRow") -> tuple[str, ...]:
    counted = (_decimal(ns, 1_000_000_000) for ns in (row.due_ns, row.run_ns))
    return (moment(row.since), row.host, row.gpu, row.tenant, row.reason, *counted)


def _hour(session: Session, text: str, option: str) -> str:
    """Return a whole hour in the API's format. A relative time counts back from the beginning of the present hour."""
    found = parse_instant(text, option, _this_hour(session))
    if is_duration(text):
        found = found.replace(minute=0, second=0)
    elif found != _beginning(found):
        raise ArgumentError(f"{option} {text[:40]!r}: give a whole hour of UTC, like 2026-11-21T12:00:00Z")
    return moment(found)


def _this_hour(session: Session) -> datetime:
    return session.now().replace(minute=0, second=0, microsecond=0)


def _beginning(of: datetime) -> datetime:
    from datetime import UTC

    return of.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _print_csv(session: Session, pieces: "Iterable[bytes]") -> None:
    """Print each piece when it arrives, with this system's line ends. A truncated export ends with an error."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in pieces:
        session.write(decoder.decode(piece).replace("\r", ""))


def _cells(row: "LedgerRow", *, with_gpu: bool) -> tuple[str, ...]:
    place = (row.host, row.gpu) if with_gpu else ()
    note = "correction" if row.correction else "" if row.closed else "not closed"
    hours_us, gib_hours = 3_600_000_000, 3_600_000_000 << 30
    return (
        moment(row.since),
        moment(row.until),
        row.account,
        row.tenant or "-",
        *place,
        _decimal(row.slice_us, hours_us),
        _decimal(row.mem_byte_us, gib_hours),
        *(_decimal(ns, 1_000_000_000) for ns in (row.granted_ns, row.assured_ns, row.due_ns, row.run_ns)),
        note or "-",
    )


def _decimal(count: int, unit: int) -> str:
    """Return `count` in a larger unit, to three decimals. A float would lose digits of a large count."""
    return str((Decimal(count) / unit).quantize(Decimal("0.001")))
