# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a host. A GPU that is gone stays, marked absent, as long as its host exists, because claims refer to it.

Claims, labels and operators' settings belong to the card. The card keeps them if it is found at another address.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import delete, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.cards import Card, Known, distinct, located, nowhere
from vgpumgr.wire.common import MEM_BYTES_MAX
from vgpumgr.wire.fleet import ReportedGpu
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.actors import Actor
from vgpumgr_api.db import models
from vgpumgr_api.db.reservations import Hold
from vgpumgr_api.db.statements import change, larger_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.text import printable
from vgpumgr_api.usage import grants

GPUS_MAX = 256
"""The maximum number of GPUs of one host, in the table and in a report."""

COUNT_MAX = 10**12
"""The maximum of microseconds or places; a thousand times this value still fits a column."""

_COUNTS = ("timeslice_min_us", "max_chunk_us", "places", "switch_cost_us")

Inventory = tuple[dict[str, str | int], dict[str, int]]
"""The columns of a GPU as reported, and the memory of its types in bytes."""


COLUMNS = tuple(
    name for name in ReportedGpu.model_fields if name not in ("address", "types", "uuid", "serial", "pci_ids")
)

HIT_MAX = 20
"""The maximum number of tenants and slices that an event about a GPU names."""


def take_inventory(session: Session, actor: Actor, host: models.Host, reported: list[ReportedGpu]) -> bool:
    """Updates a host's GPUs from a report and returns whether anything changed. The use by claims is not changed.

    A typical report changes nothing and locks no GPU, so that claims can continue.
    """
    # By id, which is the lock order of GPUs. New GPUs may be out of order, because no other transaction sees them yet.
    known = session.scalars(select(models.Gpu).where(models.Gpu.host_id == host.id).order_by(models.Gpu.id)).all()
    types = _types(session, [gpu.id for gpu in known])
    seen = {gpu.address: _bounded(gpu) for gpu in reported}
    cards = distinct({address: _card(gpu) for address, gpu in seen.items()})
    places = located({gpu.id: Known(card=_card(gpu), address=gpu.address, present=gpu.present) for gpu in known}, cards)
    changed = _vacate(session, known, places, seen)
    for gpu in known:
        if gpu.id not in places:
            if gpu.present:
                mark_absent(session, actor, host, gpu)
                changed = True
            continue
        said = seen[places[gpu.id]]
        learned = _card(gpu).learned(cards[said.address])
        same = (gpu.address, _card(gpu), _said(said)) == (said.address, learned, _stored(gpu, types.get(gpu.id, {})))
        if not gpu.present or not same or _was_other(gpu, said):
            changed |= _update(session, actor, host, gpu, said, learned, types.get(gpu.id, {}))
    new = sorted(seen.keys() - set(places.values()))
    _make_room(session, [gpu for gpu in known if gpu.id not in places], len(known) + len(new))
    _add(session, actor, host, [(seen[address], cards[address]) for address in new])
    return changed or bool(new)


def _vacate(
    session: Session, known: Sequence[models.Gpu], places: Mapping[UUID, str], seen: Mapping[str, ReportedGpu]
) -> bool:
    """Moves GPUs away from addresses that other GPUs have now, so that no two ever have the same address."""
    taken = {gpu.address for gpu in known} | seen.keys()
    moved = [gpu for gpu in known if gpu.address in seen and places.get(gpu.id) != gpu.address]
    for gpu in moved:
        aside = nowhere(str(gpu.id), taken)
        taken.add(aside)
        change(session, update(models.Gpu).where(models.Gpu.id == gpu.id).values(address=aside))
    return bool(moved)


def _card(gpu: models.Gpu | ReportedGpu) -> Card:
    return Card(uuid=gpu.uuid, serial=gpu.serial, pci_ids=gpu.pci_ids)


def _bounded(gpu: ReportedGpu) -> ReportedGpu:
    """Limits the reported values to what no GPU exceeds.

    Otherwise results computed from them, and sums over a fleet, could overflow a column: a single faulty host would
    prevent claims on all others.
    """
    said = {name: min(getattr(gpu, name), COUNT_MAX) for name in _COUNTS}
    return gpu.model_copy(update={"mem_bytes": min(gpu.mem_bytes, MEM_BYTES_MAX), **said})


def _make_room(session: Session, gone: Sequence[models.Gpu], number: int) -> None:
    """Deletes absent GPUs without claims if there are too many, so that a host cannot fill the table."""
    for gpu in gone:
        if number <= GPUS_MAX:
            break
        used = or_(exists().where(models.Slice.gpu_id == gpu.id), exists().where(Hold.gpu_id == gpu.id))
        number -= change(session, delete(models.Gpu).where(models.Gpu.id == gpu.id, ~used))
        session.expunge(gpu)
    if number > GPUS_MAX:
        detail = f"this host would have {number} GPUs, including absent ones with slices; {GPUS_MAX} at most"
        reason = Reason(code=Code.FIELD_INVALID, detail=detail, field="$.gpus")
        raise Refusal(Code.FIELD_INVALID, detail, reasons=(reason,))


def _said(gpu: ReportedGpu) -> Inventory:
    types = {kind.id: kind.mem_bytes for kind in gpu.types}
    return _columns(gpu), types


def _columns(gpu: ReportedGpu) -> dict[str, str | int]:
    said = gpu.model_dump(mode="json", include=set(COLUMNS))
    return {name: printable(value) if isinstance(value, str) else value for name, value in said.items()}


def _sizes(gpu: ReportedGpu) -> dict[str, int]:
    return {
        "reported_mem_bytes": gpu.mem_bytes,
        "reported_reserve_limit_permille": gpu.reserve_limit_permille,
    }


def _stored(gpu: models.Gpu, types: dict[str, int]) -> Inventory:
    return {name: getattr(gpu, name) for name in COLUMNS}, types


def _was_other(gpu: models.Gpu, said: ReportedGpu) -> bool:
    """Whether the reported sizes have changed. The stored sizes may hide that, because they are never below the use."""
    sizes = (said.mem_bytes, gpu.reported_mem_bytes), (said.reserve_limit_permille, gpu.reported_reserve_limit_permille)
    return any(before not in (None, now) for now, before in sizes)


def _add(session: Session, actor: Actor, host: models.Host, new: Sequence[tuple[ReportedGpu, Card]]) -> None:
    """Adds GPUs in few statements, because the reporting transaction may hold the lock of a tenant's quota."""
    gpus = [
        models.Gpu(
            id=uuid4(),
            host_id=host.id,
            address=said.address,
            **asdict(card),
            **_columns(said),
            **_sizes(said),
            present=True,
            share_used=0,
            mem_used=0,
            reserved_permille=0,
        )
        for said, card in new
    ]
    session.add_all(gpus)
    session.flush()
    _add_types(session, [(gpu.id, said) for gpu, (said, _) in zip(gpus, new, strict=True)])
    for said, _ in new:
        events.record(session, actor, "gpu.found", f"{host.name}/{said.address}")


def _update(
    session: Session,
    actor: Actor,
    host: models.Host,
    gpu: models.Gpu,
    said: ReportedGpu,
    card: Card,
    types: dict[str, int],
) -> bool:
    # A GPU may have shrunk below its use by claims. The claims keep what they have, and no more is granted.
    larger = larger_of(session)
    before = _stored(gpu, types), _card(gpu)
    was_present, was_at = gpu.present, gpu.address
    change(
        session,
        update(models.Gpu)
        .where(models.Gpu.id == gpu.id)
        .values(
            _columns(said)
            | _sizes(said)
            | asdict(card)
            | {
                "address": said.address,
                "mem_bytes": larger(said.mem_bytes, models.Gpu.mem_used),
                "reserve_limit_permille": larger(said.reserve_limit_permille, models.Gpu.reserved_permille),
                "present": True,
            }
        ),
    )
    session.refresh(gpu)
    if types != _said(said)[-1]:
        _replace_types(session, gpu.id, said)
    name = f"{host.name}/{gpu.address}"
    if was_at != gpu.address:
        grants.move(session, gpu.id, gpu.address)
        events.record(session, actor, "gpu.moved", name, detail={"from": was_at, **hit(session, gpu.id)})
    changed = not was_present or before != (_stored(gpu, _said(said)[-1]), _card(gpu))
    if changed:
        events.record(session, actor, "gpu.changed" if was_present else "gpu.found", name)
    return changed or was_at != gpu.address


def mark_absent(session: Session, actor: Actor, host: models.Host, gpu: models.Gpu) -> None:
    """Marks a GPU as absent, also if its host is gone. No claim gets it, not even one that waits for its lock."""
    name = f"{host.name}/{gpu.address}"
    change(session, update(models.Gpu).where(models.Gpu.id == gpu.id).values(present=False))
    session.refresh(gpu)
    events.record(session, actor, "gpu.absent", name, detail=hit(session, gpu.id))


def hit(session: Session, gpu_id: UUID) -> dict[str, Any]:
    """Returns the slices affected when a GPU moves or disappears: their number, their tenants, and some ids."""
    of_gpu = models.Slice.gpu_id == gpu_id
    slices = session.scalars(select(models.Slice.id).where(of_gpu).order_by(models.Slice.id).limit(HIT_MAX)).all()
    if not slices:
        return {}
    tenants = session.scalars(
        select(models.Tenant.name)
        .where(exists().where(of_gpu, models.Slice.tenant_id == models.Tenant.id))
        .order_by(models.Tenant.name)
        .limit(HIT_MAX)
    )
    number = session.scalar(select(func.count()).select_from(models.Slice).where(of_gpu))
    return {"slices": number, "tenants": list(tenants), "some": [str(one) for one in slices]}


def _types(session: Session, gpus: list[UUID]) -> dict[UUID, dict[str, int]]:
    types: dict[UUID, dict[str, int]] = {}
    for row in session.scalars(select(models.GpuType).where(models.GpuType.gpu_id.in_(gpus))):
        types.setdefault(row.gpu_id, {})[row.mdev_type] = row.mem_bytes
    return types


def _replace_types(session: Session, gpu_id: UUID, said: ReportedGpu) -> None:
    change(session, delete(models.GpuType).where(models.GpuType.gpu_id == gpu_id))
    _add_types(session, [(gpu_id, said)])


def _add_types(session: Session, gpus: Sequence[tuple[UUID, ReportedGpu]]) -> None:
    rows = [
        {"gpu_id": gpu_id, "mdev_type": kind.id, "mem_bytes": kind.mem_bytes}
        for gpu_id, said in gpus
        for kind in said.types
    ]
    if rows:
        session.connection().execute(insert(models.GpuType), rows)
