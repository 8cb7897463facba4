# SPDX-License-Identifier: Apache-2.0
"""Meters' counts that the ledger does not accept. They are stored separately, so that they do not go unnoticed.

A row contains all that the meter reported of that hour, not only the part that was left out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, tuple_
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.usage import Reading, UnbookedReason, UnbookedRow
from vgpumgr_api.actors import Actor, require_view
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import upsert
from vgpumgr_api.events import events
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.text import printable
from vgpumgr_api.resources.times import require_order

UNATTRIBUTED = UnbookedReason.UNATTRIBUTED.value
"""No tenant of that name ever had a claim there, or the database with that claim was lost."""

IMPLAUSIBLE = UnbookedReason.IMPLAUSIBLE.value
"""More than the GPU can have done in that time, or of a time that the ledger no longer has."""

LIMIT_NS = 2 * 3600 * 10**9
"""The maximum for one GPU in one hour, which lasts twice as long if a clock is set back. For throttled time it is the
maximum for each tenant, because tenants are throttled concurrently.
"""

CORRECTIONS_MAX = 24
"""The maximum number of ledger rows for one hour of a group. A meter continues to count a past hour after a restore, or
while its host's clock is wrong.
"""

ROWS_MAX = 50_000
"""The maximum number of rows of one host, whose reports are not trusted: 16 GPUs with 10 tenants each, for the ten days
whose counts it may send again.
"""

SAID_EVERY = timedelta(hours=1)

_COUNTS = ("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns")
_OF_TENANT = "throttled_ns"
_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class UnbookedFilter:
    """Selects rows; None selects all. Hours that begin at `since` or later, and before `until`."""

    since: datetime | None = None
    until: datetime | None = None
    host: str | None = None
    tenant: str | None = None
    reason: UnbookedReason | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the conditions that a row must meet."""
        row = ledger.Unbooked
        found: list[ColumnElement[bool]] = []
        if self.since is not None:
            found.append(row.hour >= self.since)
        if self.until is not None:
            found.append(row.hour < self.until)
        equal = {row.host: self.host, row.tenant: self.tenant, row.reason: self.reason and self.reason.value}
        found += [column == value for column, value in equal.items() if value is not None]
        return found


def list_unbooked(session: Session, actor: Actor, page: PageRequest, wanted: UnbookedFilter) -> Page[UnbookedRow]:
    """Returns hosts' counts that the ledger lacks, the earliest hour first. For actors that see the whole cloud."""
    require_view(actor)
    require_order(wanted.since, wanted.until)
    row = ledger.Unbooked
    keys = [row.hour, row.host, row.gpu, row.tenant, row.reason]
    found, token = fetch(session, select(row).where(*wanted.conditions()), kind="unbooked", keys=keys, page=page)
    return Page(items=[_row(each[0]) for each in found], next_page_token=token)


def _row(found: ledger.Unbooked) -> UnbookedRow:
    return UnbookedRow(
        since=found.hour,
        host=found.host,
        gpu=found.gpu,
        tenant=found.tenant,
        reason=UnbookedReason(found.reason),
        **{name: getattr(found, name) for name in _COUNTS},
    )


Group = tuple[datetime, str, UUID]
"""An hour of a tenant on a GPU."""


class Bounds:
    """Judges whether more counts are plausible, given the amounts and rows booked for hours of a host's GPUs."""

    def __init__(self, session: Session, host: str, groups: Iterable[Group]) -> None:
        self._booked: Counter[tuple[str, datetime, str, UUID | None]] = Counter()
        self._rows: dict[Group, set[datetime]] = {}
        entry, wanted = ledger.LedgerEntry, sorted(set(groups))
        gpus = sorted({group[:2] for group in wanted})
        of_gpu = [name for name in _COUNTS if name != _OF_TENANT]
        sums = [func.sum(func.abs(getattr(entry, name))).label(name) for name in of_gpu]
        for start in range(0, len(gpus), _BATCH):
            key = (entry.hour, entry.gpu)
            some = tuple_(*key).in_(gpus[start : start + _BATCH])
            for row in session.execute(select(*key, *sums).where(entry.host == host, some).group_by(*key)):
                for name in of_gpu:
                    self._booked[name, row.hour, row.gpu, None] = int(getattr(row, name))
        for start in range(0, len(wanted), _BATCH):
            group = (entry.hour, entry.gpu, entry.tenant_id)
            some = tuple_(*group).in_(wanted[start : start + _BATCH])
            counts = (entry.booked, entry.throttled_ns)
            for row in session.execute(select(*group, *counts).where(entry.host == host, some)):
                self._booked[_OF_TENANT, row.hour, row.gpu, row.tenant_id] += row.throttled_ns
                self._rows.setdefault((row.hour, row.gpu, row.tenant_id), set()).add(row.booked)

    def take(self, group: Group, booked: datetime, before: Mapping[str, int], after: Mapping[str, int]) -> bool:
        """Returns whether the growth of a group's counts is plausible, and if so, counts it. `booked`: its row."""
        growth = {name: after[name] - before[name] for name in _COUNTS}
        rows = self._rows.get(group, set())
        if any(growth.values()) and (
            any(abs(after[name]) > LIMIT_NS for name in _COUNTS)
            or any(self._booked[key] + abs(growth[key[0]]) > LIMIT_NS for key in _shared(group))
            or (booked not in rows and len(rows) >= CORRECTIONS_MAX)
        ):
            return False
        for key in _shared(group):
            self._booked[key] += abs(growth[key[0]])
        self._rows.setdefault(group, set()).add(booked)
        return True


def _shared(group: Group) -> Iterator[tuple[str, datetime, str, UUID | None]]:
    """Yields what an hour's limits apply to: counts of a GPU, or of each tenant there."""
    hour, gpu, tenant_id = group
    for name in _COUNTS:
        yield name, hour, gpu, tenant_id if name == _OF_TENANT else None


class Aside:
    """The counts of one message that the ledger does not take. A meter causes one event per `SAID_EVERY` at most."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def put(self, reason: str, hour: datetime, reading: Reading) -> None:
        """Keeps a meter's reading of an hour."""
        key = (hour, self._host, reading.gpu, printable(reading.tenant)[:63], reason)
        self._rows[key] = dict(zip(("hour", "host", "gpu", "tenant", "reason"), key, strict=True)) | {
            name: getattr(reading, name) for name in _COUNTS
        }

    def store(self, session: Session, actor: Actor, meter: ledger.Meter) -> None:
        """Stores the readings while there is room, with an event if any of them is new."""
        if not self._rows:
            return
        table = ledger.Unbooked
        keys = (table.hour, table.host, table.gpu, table.tenant, table.reason)
        wanted = list(self._rows)
        there = {
            tuple(row)
            for start in range(0, len(wanted), _BATCH)
            for row in session.execute(select(*keys).where(tuple_(*keys).in_(wanted[start : start + _BATCH])))
        }
        new = [key for key in wanted if key not in there]
        room = self._room(session) if new else 0
        there.update(new[:room])
        upsert(session, table, [row for key, row in self._rows.items() if key in there])
        if new and (meter.left_out_at is None or meter.left_out_at <= now(session) - SAID_EVERY):
            meter.left_out_at = now(session)
            hour, _, gpu, tenant, reason = new[0]
            first = {"hour": hour.isoformat(), "gpu": gpu, "tenant": tenant, "reason": reason}
            detail = {"rows": len(new), "first": first, "full": room <= len(new)}
            events.record(session, actor, "host.usage_unbooked", self._host, detail=detail)

    def _room(self, session: Session) -> int:
        own = select(ledger.Unbooked.hour).where(ledger.Unbooked.host == self._host).limit(ROWS_MAX).subquery()
        return ROWS_MAX - (session.scalar(select(func.count()).select_from(own)) or 0)
