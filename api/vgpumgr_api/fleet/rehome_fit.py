# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU can take the claims of another GPU of its host, and how much each claim counts there.

A claim keeps its share, its memory and the ratio by which its share counts. The device may have another memory class.
The selector of a claim is not stored, so the new GPU must have every label of the old one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import PERMILLE, Policy, Workload
from vgpumgr.wire.problem import Code, Reason, Subject
from vgpumgr.wire.resources import Level, SliceState
from vgpumgr_api.db import models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.labels import GpuLabel, HostLabel
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.reservations import Hold, Reservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.placement.labels import labels_of
from vgpumgr_api.placement.obstacles import ONLINE, RESERVE_CHUNKS, policy_of
from vgpumgr_api.resources.in_use import NAMED_MAX
from vgpumgr_api.tenancy.enforcement import counted_permille, reserved_permille


@dataclass(frozen=True, kw_only=True)
class Moving:
    """A claim that is to move. It is locked."""

    claim: models.Slice
    tenant: models.Tenant
    profile: models.Profile


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A claim with its new memory class, and how much it counts of the new GPU's share and reservable time."""

    moving: Moving
    mdev_type: str
    type_mem_bytes: int
    share: int
    reserved_permille: int


def fit(
    session: Session,
    host: models.Host,
    report: HostReport,
    *,
    old: models.Gpu,
    new: models.Gpu,
    moving: Sequence[Moving],
) -> list[Fitted]:
    """Returns the claims as they would be on `new`. The caller has locked all of these rows.

    Raises Refusal(CAPACITY_NONE) with a reason for each obstacle, in the same words as for a claim that finds no GPU.
    """
    types = {gpu.id: _types(session, gpu.id) for gpu in (old, new)}
    reasons = [*_of_gpus(session, host, report, old, new, types)]
    fitted: list[Fitted] = []
    for each in moving:
        found = _fitted(each, new, types[new.id])
        if isinstance(found, Reason):
            reasons.append(found)
        else:
            fitted.append(found)
        reasons += _of_ties(session, each, new)
    reasons += _of_room(new, fitted)
    reasons += _of_policy(session, new, moving)
    if reasons:
        more = f" ({len(reasons)} reasons)" if len(reasons) > 1 else ""
        raise Refusal(
            Code.CAPACITY_NONE,
            f"GPU {host.name}/{new.address} cannot take the claims of {host.name}/{old.address}: "
            f"{reasons[0].detail}{more}",
            reasons=tuple(reasons[:NAMED_MAX]),
        )
    return fitted


def _of_gpus(
    session: Session,
    host: models.Host,
    report: HostReport,
    old: models.Gpu,
    new: models.Gpu,
    types: dict[UUID, list[models.GpuType]],
) -> Iterator[Reason]:
    heard = report.reported_at is not None and now(session) - report.reported_at <= ONLINE
    if not heard or host.enrolled_at is None or host.enroll_hash is not None:
        yield _reason("host.offline", f"host {host.name} is not enrolled, or has not reported for {ONLINE.seconds} s")
    if not host.epoch_confirmed:
        yield _reason("host.unconfirmed", f"host {host.name} is not confirmed; compare, then confirm its epoch")
    if report.unknown_slices:
        yield _reason("gpu.unknown_slices", f"host {host.name} has slices that the database does not know")
    if not new.present:
        yield _reason("gpu.absent", "it was not in the last report of its host either")
    kinds = [(gpu.engine, gpu.backend, _driver(types[gpu.id])) for gpu in (old, new)]
    if kinds[0] != kinds[1]:
        said = [" / ".join(part or "-" for part in kind) for kind in kinds]
        yield _reason("kind.other", f"engine, backend and driver are {said[1]}, those of the absent GPU {said[0]}")
    lacking = _labels_lacking(session, host, old, new)
    if lacking:
        yield _reason("labels.other", f"it lacks labels of the absent GPU: {', '.join(lacking)}")


def _labels_lacking(session: Session, host: models.Host, old: models.Gpu, new: models.Gpu) -> list[str]:
    of_host = labels_of(session, HostLabel, [host.id])[host.id]
    of_gpus = labels_of(session, GpuLabel, [old.id, new.id])
    has = of_host | of_gpus[new.id]
    return [f"{key}={value}" for key, value in sorted((of_host | of_gpus[old.id]).items()) if has.get(key) != value]


def _types(session: Session, gpu_id: UUID) -> list[models.GpuType]:
    row = models.GpuType
    return list(session.scalars(select(row).where(row.gpu_id == gpu_id).order_by(row.mem_bytes, row.mdev_type)))


def _driver(types: Sequence[models.GpuType]) -> str:
    return types[0].mdev_type.rpartition("-")[0] if types else ""


def _fitted(moving: Moving, new: models.Gpu, types: Sequence[models.GpuType]) -> Fitted | Reason:
    claim = moving.claim
    if claim.workload == Workload.PROCESS.value:
        return _reason("workload.other", "it is for processes; delete it, and claim one for the other GPU", claim)
    if policy_of(moving.profile) != Policy(new.policy):
        return _reason("policy.other", f"it is shared by {new.policy}", claim)
    kind = next((each for each in types if each.mem_bytes >= claim.mem_bytes), None)
    if kind is None:
        return _reason("type.none", "none of its mdev types has enough memory", claim)
    share = counted_permille(claim.share_permille, claim.fair_ratio_permille)
    reserved, period_us = 0, claim.reserve_period_us
    if period_us is not None:
        if RESERVE_CHUNKS * new.max_chunk_us > period_us:
            return _reason("reserve.full", "its longest piece of work is too long for the period", claim)
        reserved = reserved_permille(share, new.max_chunk_us, period_us)
    return Fitted(
        moving=moving,
        mdev_type=kind.mdev_type,
        type_mem_bytes=kind.mem_bytes,
        share=share,
        reserved_permille=reserved,
    )


def _of_room(new: models.Gpu, fitted: Sequence[Fitted]) -> Iterator[Reason]:
    """Yields reasons if the claims do not fit together; each alone may fit."""
    for code, what, wanted, free in (
        ("share.full", "permille", sum(each.share for each in fitted), PERMILLE - new.share_used),
        ("memory.full", "bytes of memory", sum(each.type_mem_bytes for each in fitted), new.mem_bytes - new.mem_used),
        (
            "reserve.full",
            "permille of its time to reserve",
            sum(each.reserved_permille for each in fitted),
            new.reserve_limit_permille - new.reserved_permille,
        ),
    ):
        if fitted and wanted > free:
            yield _reason(code, f"the claims need {wanted} {what}, and {max(free, 0)} are free")


def _of_policy(session: Session, new: models.Gpu, moving: Sequence[Moving]) -> Iterator[Reason]:
    """Yields reasons of the policies under which slices must have equal shares, or each slice needs a place."""
    if Policy(new.policy) is Policy.BEST_EFFORT or not moving:
        return
    shares = {each.claim.share_permille for each in moving}
    taken = len(moving)
    for table in (models.Slice, Hold):
        there = select(table.share_permille, func.count()).where(table.gpu_id == new.id).group_by(table.share_permille)
        for share, count in session.execute(there):
            shares.add(share)
            taken += count
    if len(shares) > 1:
        yield _reason("policy.unequal", "all its slices get the same share, and these claims have different shares")
    if Policy(new.policy) is Policy.FIXED_SHARE and (taken > new.places or max(shares) * new.places > PERMILLE):
        yield _reason("policy.places", f"it has {new.places} places, and {taken} are needed of that share")


def _of_ties(session: Session, moving: Moving, new: models.Gpu) -> Iterator[Reason]:
    """Yields reasons of affinities. Only those about GPUs matter, because the host stays the same.

    Claims with the same affinity move together, but reserved places with this affinity stay where they are.
    """
    claim, tenant = moving.claim, moving.tenant
    of_tenant = (
        select(Hold.id)
        .join(Reservation, Reservation.id == Hold.reservation_id)
        .where(Reservation.tenant_id == tenant.id, Reservation.expires_at > now(session))
    )
    if claim.anti_affinity is not None:
        slices = select(models.Slice.id).where(
            models.Slice.tenant_id == tenant.id,
            models.Slice.anti_affinity == claim.anti_affinity,
            models.Slice.state != SliceState.LOST.value,
            models.Slice.gpu_id == new.id,
        )
        places = of_tenant.where(Reservation.anti_affinity == claim.anti_affinity, Hold.gpu_id == new.id)
        if session.scalar(slices.limit(1)) or session.scalar(places.limit(1)):
            yield _reason("anti_affinity.taken", "the tenant has a slice of this anti-affinity there", claim)
    if claim.affinity is not None:
        places = of_tenant.where(Reservation.affinity == claim.affinity, Hold.gpu_id != new.id)
        if claim.affinity_level != Level.GPU.value:
            places = places.where(Reservation.affinity_level == Level.GPU.value)
        if session.scalar(places.limit(1)):
            yield _reason("affinity.apart", "a reservation holds a place of this affinity on another GPU", claim)


def _reason(code: str, detail: str, claim: models.Slice | None = None) -> Reason:
    if claim is None:
        return Reason(code=code, detail=detail, count=1)
    subject = Subject(kind="slice", id=claim.id, vm_uuid=claim.vm_uuid)
    return Reason(code=code, detail=f"slice {claim.id}: {detail}", about=subject)
