# SPDX-License-Identifier: Apache-2.0
"""`top --broker`: a live table of the entitled and obtained shares of this host's broker's tenants."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpumgr.cli.session import Output, Session, table
from vgpumgr.cli.units import format_us
from vgpumgr.sizes import format_size

if TYPE_CHECKING:
    from vgpumgr.broker.table import Row

HEADER = (
    "TENANT",
    "WEIGHT",
    "ENTITLED",
    "OBTAINED",
    "LEASED",
    "LEASES",
    "WAIT",
    "LONGEST WAIT",
    "PROCESSES",
    "MEMORY",
    "UNDER WAY",
    "GATES",
)
NATIVE_HEADER = ("OPEN", "USED", "ENFORCED BY")
CLEAR = "\x1b[H\x1b[2J"


def broker_top(session: Session, directory: Path, *, interval_s: float, count: int | None, tenant: str | None) -> None:
    """Print a table after each interval, `count` times or until interrupted. BrokerRefusedError: no such tenant."""
    from vgpumgr.broker.control import Control, no_tenant
    from vgpumgr.broker.table import rows

    control = Control(directory)
    before = control.show()
    there = [str(each["name"]) for each in before["tenants"]]
    if tenant is not None and tenant not in there:
        raise no_tenant(directory, tenant, there)
    printed = 0
    try:
        while count is None or printed < count:
            session.sleep(interval_s)
            after = control.show()
            found = [row for row in rows(before, after) if tenant in (None, row.tenant)]
            _print(session, found, live=count is None)
            before = after
            printed += 1
    except KeyboardInterrupt:
        return


def _print(session: Session, found: "Sequence[Row]", *, live: bool) -> None:
    if session.output == Output.JSON:
        session.print(json.dumps([_json(row) for row in found], indent=None if live else 2))
        return
    if any(row.native for row in found):
        text = table((*HEADER, *NATIVE_HEADER), ((*_cells(row), *_native_cells(row)) for row in found))
    else:
        text = table(HEADER, (_cells(row) for row in found))
    if live:
        text = CLEAR + text if sys.stdout.isatty() else text + "\n"
    session.print(text)


def _cells(row: "Row") -> tuple[str, ...]:
    return (
        row.tenant + (" (confined)" if row.confined else ""),
        str(row.weight),
        _percent(row.entitled_share),
        _percent(row.obtained_share),
        format_us(row.leased_ns / 1000),
        str(row.leases),
        "-" if row.wait_ns is None else format_us(row.wait_ns / 1000),
        format_us(row.longest_wait_ns / 1000),
        f"{row.processes}/{row.max_processes}",
        format_size(row.memory_bytes),
        str(row.under_way),
        str(row.gates),
    )


def _native_cells(row: "Row") -> tuple[str, ...]:
    if row.native is None:
        return ("-",) * len(NATIVE_HEADER)
    return _percent(row.native.open_share), format_size(row.native.memory_used_bytes), row.native.enforced_by


def _percent(share: Fraction | None) -> str:
    return "-" if share is None else f"{100 * float(share):.1f}%"


def _json(row: "Row") -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(part) for name, part in value.items()}
        return float(value) if isinstance(value, Fraction) else value

    return {name: plain(value) for name, value in asdict(row).items()}
