# SPDX-License-Identifier: Apache-2.0
"""`usage`: the ledger, as it is billed by. docs/usage.md says what each quantity means."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgpumgr.cli.kinds import checked_name, moment
from vgpumgr.cli.session import Session, begin, dumped, table
from vgpumgr.cli.units import is_duration, parse_instant
from vgpumgr.errors import ArgumentError

if TYPE_CHECKING:
    from vgpumgr.wire.usage import LedgerRow

WHO = ("ACCOUNT", "TENANT")
WHERE = ("HOST", "GPU")
QUANTITIES = ("SLICE-HOURS", "GIB-HOURS", "GRANTED-S", "ASSURED-S", "DUE-S", "RUN-S")


class UsageOutput(StrEnum):
    """How to print the ledger; whole numbers in json and csv."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class GranularityOption(StrEnum):
    """How much time a row is about, without importing the models for `--help`."""

    HOUR = "hour"
    DAY = "day"
    TOTAL = "total"


class ByOption(StrEnum):
    """Whom a row is about, without importing the models for `--help`."""

    ACCOUNT = "account"
    TENANT = "tenant"
    GPU = "gpu"


def usage(
    context: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="from then: 7d (ago), or a whole hour like 2026-11-01T00:00:00Z")
    ] = "24h",
    until: Annotated[str, typer.Option(metavar="WHEN", help="before then")] = "0h",
    granularity: Annotated[
        GranularityOption, typer.Option(help="how much time a row is about")
    ] = GranularityOption.TOTAL,
    by: Annotated[
        ByOption, typer.Option(help="account: with its projects; gpu: tenant, host and GPU")
    ] = ByOption.TENANT,
    tenant: Annotated[str | None, typer.Option(help="only this tenant, also one that is gone")] = None,
    account: Annotated[str | None, typer.Option(help="only this account and its projects")] = None,
    as_of: Annotated[
        str | None, typer.Option(metavar="WHEN", help="without what was booked from then on: an old bill again")
    ] = None,
    output: Annotated[
        UsageOutput, typer.Option("--output", "-o", help="table for people, json and csv for programs")
    ] = UsageOutput.TABLE,
) -> None:
    """Show what was granted to and used by each tenant. How long ago is counted from this hour's beginning."""
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
        _print_csv(session, wanted)
        return
    rows = session.client.ledger(**wanted)
    if output is UsageOutput.JSON:
        session.print_json([dumped(row) for row in rows])
    else:
        with_gpu = by is ByOption.GPU
        header = ("SINCE", "UNTIL", *WHO, *(WHERE if with_gpu else ()), *QUANTITIES, "NOTE")
        session.print(table(header, (_cells(row, with_gpu=with_gpu) for row in rows)))


def _hour(session: Session, text: str, option: str) -> str:
    """Return a whole hour as the API takes it. Times ago count from the beginning of the present hour."""
    now = session.now().replace(minute=0, second=0, microsecond=0)
    found = parse_instant(text, option, now)
    if is_duration(text):
        found = found.replace(minute=0, second=0)
    elif found != _beginning(found):
        raise ArgumentError(f"{option} {text[:40]!r}: the ledger has whole hours of UTC, like 2026-11-21T12:00:00Z")
    return moment(found)


def _beginning(of: datetime) -> datetime:
    from datetime import UTC

    return of.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _print_csv(session: Session, wanted: dict[str, Any]) -> None:
    """As it comes, with the line ends of this system. An export that breaks off ends with an error."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in session.client.export_ledger(**wanted):
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
    """Return `count` in a larger unit, to three places; exact until then, however many digits it has."""
    return str((Decimal(count) / unit).quantize(Decimal("0.001")))
