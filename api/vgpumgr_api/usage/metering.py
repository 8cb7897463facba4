# SPDX-License-Identifier: Apache-2.0
"""Books the counts of hosts' meters, each exactly once, even if messages are repeated, late or reordered.

A meter's counts of an hour only grow, and each change has a revision. The amount booked is the difference between a
count and what was booked of it before. The same transaction records the revision up to which this was done. If the
ledger lacks counts, because it was restored or a message was lost, the meter sends them again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import CTE, ColumnElement, Select, String, column, false, func, select, tuple_, values
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.problem import Code
from vgpumgr.wire.usage import Metered, Reading, Readings
from vgpumgr_api.actors import Actor, own_host, require_unrevoked
from vgpumgr_api.db import ledger, models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import insert_unless_there, is_postgresql, upsert
from vgpumgr_api.errors import Refusal
from vgpumgr_api.usage import books
from vgpumgr_api.usage.books import EPOCH, HOUR, hour_of
from vgpumgr_api.usage.unbooked import IMPLAUSIBLE, UNATTRIBUTED, Aside, Bounds, Group

COUNTED = ("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns")
_BOTH_WAYS = "due_ns"
_KEY = ("meter_id", "hour", "gpu", "tenant")
_BATCH = 500

METERS_MAX = 64
"""The maximum number of meters within `books.METERS_WITHIN`. A host has one meter; another begins if its disk was lost
or restored.
"""

LEFT_FOR = timedelta(hours=2)
"""How long after a tenant's last claim ended counts are still booked to the tenant, because hosts' clocks differ."""

COUNTS_MAX = 1_000_000
"""The maximum number of stored counts of one host, whose reports are not trusted: 64 GPUs with 20 tenants each, as long
as counts are kept.
"""


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """The owner of a group on a GPU. `first`: the hour in which its first claim began.

    `last`: the hour in which its last claim ended, None if a claim has not ended.
    """

    tenant_id: UUID
    account_id: UUID
    account: str
    first: datetime
    last: datetime | None


def meter(session: Session, actor: Actor, host: str, said: Readings) -> Metered:
    """Books the counts of a meter of `host`. Returns the revision up to which the ledger has them."""
    row = own_host(session, actor, host)
    found = _locked(session, row, said)
    require_unrevoked(session, actor, row)  # the host may have been fenced during the wait for the lock
    if found is None or found.revision > said.newest:
        return Metered(revision=0, restart=True)
    if said.after > found.revision:  # the ledger was restored, or the host took another meter's answer for this meter's
        return Metered(revision=found.revision)
    new = [reading for reading in said.readings if found.revision < reading.revision <= said.through]
    _book(session, actor, row, found, new)
    found.revision = max(found.revision, said.through)
    found.told_at = now(session)
    if found.revision == said.newest and said.readings:
        # These hours are by the host's clock. If it is ahead, they are limited to the present.
        found.complete_hour = min(_present(session), *(reading.hour for reading in said.readings))
    session.flush()
    return Metered(revision=found.revision)


def _locked(session: Session, host: models.Host, said: Readings) -> ledger.Meter | None:
    """Returns the meter's row, created if needed; None if it belongs to another host that still exists."""
    statement = select(ledger.Meter).where(ledger.Meter.id == said.meter_id).with_for_update()
    found = session.scalar(statement)
    if found is None:
        _require_room(session, host)
        values = {"id": said.meter_id, "host_id": host.id, "revision": 0, "told_at": now(session)}
        values["complete_hour"] = _present(session)
        insert_unless_there(session, ledger.Meter, values, outdated=false())
        found = session.scalars(statement).one()
    if found.host_id != host.id:
        if session.scalar(select(models.Host.id).where(models.Host.id == found.host_id)) is not None:
            return None
        found.host_id = host.id  # the same machine, whose host was deleted and created again
    return found


def _require_room(session: Session, host: models.Host) -> None:
    """Refuses a host that keeps beginning new meters, because each meter is remembered for ever."""
    recent = (*_told_since_it_enrolled(host), ledger.Meter.told_at >= now(session) - books.METERS_WITHIN)
    if (session.scalar(select(func.count()).select_from(ledger.Meter).where(*recent)) or 0) >= METERS_MAX:
        raise Refusal(
            Code.RATE_EXCEEDED,
            f"{METERS_MAX} meters of this host reported within the last {books.METERS_WITHIN.days} days; find out"
            " why its agent loses its meter.db",
            retry_after_s=3600,
        )


def _book(
    session: Session, actor: Actor, reporter: models.Host, teller: ledger.Meter, readings: Sequence[Reading]
) -> None:
    if not readings:
        return
    host, meter_id = reporter.name, teller.id
    owners = _owners(session, host, {(reading.gpu, reading.tenant) for reading in readings})
    kept = books.held(session)
    told = {(reading.hour, reading.gpu, reading.tenant) for reading in readings if reading.tenant.isprintable()}
    counted = _counted(session, meter_id, sorted(told))
    room = _room(session, reporter) if len(counted) < len(told) else 0
    counts: dict[tuple[int, str, str], dict[str, Any]] = {}
    entries: dict[tuple[datetime, datetime, UUID, str], dict[str, Any]] = {}
    bounds = Bounds(session, host, _groups(session, owners, readings, kept.kept_from))
    aside = Aside(host)
    for reading in sorted(readings, key=lambda reading: reading.revision):
        key = (reading.hour, reading.gpu, reading.tenant)
        owner = _owner(owners.get(key[1:], ()), _said_hour(session, reading.hour))
        before = counts.get(key) or counted.get(key) or dict.fromkeys(COUNTED, 0)
        after = {name: _further(name, before[name], getattr(reading, name)) for name in COUNTED}
        if reading.tenant.isprintable():  # no tenant has an unprintable name, and it may not be storable
            if key not in counted and key not in counts:
                if room == 0:  # without a stored count, the reading could be booked twice
                    aside.put(IMPLAUSIBLE, _said_hour(session, reading.hour), reading)
                    continue
                room -= 1
            counts[key] = dict(zip(_KEY, (meter_id, *key), strict=True)) | after
        if owner is None:
            # The reading stays without an owner even if a tenant claims in the same hour.
            aside.put(UNATTRIBUTED, _said_hour(session, reading.hour), reading)
            continue
        hour = _hour(session, reading.hour, owner, kept.kept_from)
        if hour < kept.kept_from:
            if after != before:  # the reading came too late, or the host's clock was wrong
                aside.put(IMPLAUSIBLE, hour, reading)
            continue
        booked = hour if hour >= kept.closed_before else max(hour_of(now(session)), kept.closed_before)
        if not bounds.take((hour, reading.gpu, owner.tenant_id), booked, before, after):
            aside.put(IMPLAUSIBLE, hour, reading)
            continue
        entry = entries.setdefault(
            (hour, booked, owner.tenant_id, reading.gpu),
            {
                "hour": hour,
                "booked": booked,
                "tenant_id": owner.tenant_id,
                "host": host,
                "gpu": reading.gpu,
                "tenant": reading.tenant,
                "account_id": owner.account_id,
                "account": owner.account,
                **dict.fromkeys(COUNTED, 0),
            },
        )
        for name in COUNTED:
            entry[name] += after[name] - before[name]
    upsert(session, ledger.MeterCount, list(counts.values()))
    aside.store(session, actor, teller)
    _add(session, [entry for _, entry in sorted(entries.items()) if any(entry[name] for name in COUNTED)])


def _further(name: str, before: int, said: int) -> int:
    return said if name == _BOTH_WAYS else max(before, said)


def _hour(session: Session, said: int, owner: _Owner, kept_from: datetime) -> datetime:
    """Returns the hour to book, from the owner's first claim until now, because a host's clock may be wrong.

    A reading from before that claim counts for the earliest possible hour. Such a reading is not really old, and the
    ledger may not keep the hour that it names.
    """
    hour = _said_hour(session, said)
    return min(max(owner.first, kept_from) if hour < owner.first else hour, hour_of(now(session)))


def _said_hour(session: Session, said: int) -> datetime:
    return EPOCH + timedelta(hours=min(said, _present(session)))


def _groups(
    session: Session,
    owners: Mapping[tuple[str, str], Sequence[_Owner]],
    readings: Sequence[Reading],
    kept_from: datetime,
) -> Iterator[Group]:
    for reading in readings:
        owner = _owner(owners.get((reading.gpu, reading.tenant), ()), _said_hour(session, reading.hour))
        if owner is not None:
            yield _hour(session, reading.hour, owner, kept_from), reading.gpu, owner.tenant_id


def _present(session: Session) -> int:
    return (now(session) - EPOCH) // HOUR


def _owner(owners: Sequence[_Owner], hour: datetime) -> _Owner | None:
    """Returns the last owner with a claim by the end of `hour`, or None if that owner had left.

    If there was no claim yet, returns the first owner.
    """
    there = [owner for owner in owners if owner.first <= hour]
    if not there:
        return owners[0] if owners else None
    last = there[-1].last
    return there[-1] if last is None or hour <= last + LEFT_FOR else None


def _owners(session: Session, host: str, told: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[_Owner]]:
    """Returns the owners of claims on this host, the earliest first, for each GPU and tenant name in `told`.

    The index is walked from one tenant of a name to the next, skipping all but the first claim of each: a host has few
    tenants, but ever more past claims.
    """
    found: dict[tuple[str, str], list[_Owner]] = {}
    known = sorted((gpu, name) for gpu, name in told if name.isprintable())
    for start in range(0, len(known), _BATCH):
        first = session.execute(_first_and_last_claims(host, known[start : start + _BATCH]))
        for gpu, tenant, tenant_id, account_id, account, since, until in first:
            last = None if until is None else hour_of(until)
            found.setdefault((gpu, tenant), []).append(
                _Owner(tenant_id=tenant_id, account_id=account_id, account=account, first=hour_of(since), last=last)
            )
    return found


def _first_and_last_claims(
    host: str, told: Sequence[tuple[str, str]]
) -> Select[str, str, UUID, UUID, str, datetime, datetime | None]:
    """Selects each tenant's first claim there, and the end of its last one; NULL if a claim has not ended."""
    grant = ledger.Grant
    pairs = values(column("gpu", String), column("tenant", String), name="told").data(list(told)).cte("told")

    def next_of(names: CTE, *further: ColumnElement[bool]) -> Any:
        return (
            select(grant.tenant_id)
            .where(grant.host == host, grant.gpu == names.c.gpu, grant.tenant == names.c.tenant, *further)
            .order_by(grant.tenant_id)
            .limit(1)
            .correlate(names)
            .scalar_subquery()
        )

    tenants = select(pairs.c.gpu, pairs.c.tenant, next_of(pairs).label("tenant_id")).cte("tenants", recursive=True)
    further = select(tenants.c.gpu, tenants.c.tenant, next_of(tenants, grant.tenant_id > tenants.c.tenant_id))
    tenants = tenants.union_all(further.where(tenants.c.tenant_id.is_not(None)))
    earliest = aliased(grant)
    first = (
        select(earliest.id)
        .where(
            earliest.host == host,
            earliest.gpu == tenants.c.gpu,
            earliest.tenant == tenants.c.tenant,
            earliest.tenant_id == tenants.c.tenant_id,
        )
        .order_by(earliest.started_at)
        .limit(1)
        .correlate(tenants)
        .scalar_subquery()
    )
    other = aliased(grant)
    same = (other.host == host, other.gpu == tenants.c.gpu, other.tenant_id == tenants.c.tenant_id)
    # Ordered like one particular index, so that PostgreSQL chooses no other, however few hosts it expects.
    ends = select(other.ended_at).where(*same).order_by(other.ended_at.is_(None).desc(), other.ended_at.desc()).limit(1)
    return (
        select(
            *(grant.gpu, grant.tenant, grant.tenant_id, grant.account_id, grant.account, grant.started_at),
            ends.correlate(tenants).scalar_subquery(),
        )
        .join(tenants, grant.id == first)
        .order_by(grant.started_at)
    )


def _counted(
    session: Session, meter_id: UUID, told: Sequence[tuple[int, str, str]]
) -> dict[tuple[int, str, str], dict[str, int]]:
    """Returns the stored counts of these hours and groups only, because a host may report any number of names."""
    count = ledger.MeterCount
    key, counts = (count.hour, count.gpu, count.tenant), [getattr(count, name) for name in COUNTED]
    return {
        (row.hour, row.gpu, row.tenant): {name: getattr(row, name) for name in COUNTED}
        for start in range(0, len(told), _BATCH)
        for row in session.execute(
            select(*key, *counts).where(count.meter_id == meter_id, tuple_(*key).in_(told[start : start + _BATCH]))
        )
    }


def _room(session: Session, host: models.Host) -> int:
    """Returns how many more counts of the host may be stored."""
    count = ledger.MeterCount
    own = select(ledger.Meter.id).where(*_told_since_it_enrolled(host))
    some = select(count.hour).where(count.meter_id.in_(own)).limit(COUNTS_MAX).subquery()
    return COUNTS_MAX - (session.scalar(select(func.count()).select_from(some)) or 0)


def _told_since_it_enrolled(host: models.Host) -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions for meters used since the host enrolled: a compromised host may have made earlier ones."""
    own = (ledger.Meter.host_id == host.id,)
    return own if host.enrolled_at is None else (*own, ledger.Meter.told_at >= host.enrolled_at)


def _add(session: Session, entries: list[dict[str, Any]]) -> None:
    if not entries:
        return
    statement = (postgresql.insert if is_postgresql(session) else sqlite.insert)(ledger.LedgerEntry)
    sums = {name: getattr(ledger.LedgerEntry, name) + statement.excluded[name] for name in COUNTED}
    keys = ledger.LedgerEntry.__table__.primary_key
    statement = statement.on_conflict_do_update(index_elements=[column.name for column in keys], set_=sums)
    session.connection().execute(statement, entries)
