# SPDX-License-Identifier: Apache-2.0
"""Affinity and anti-affinity between slices of one tenant. Both are hard: a claim that cannot keep them is refused.

A place of a reservation with ties counts like the slice that will take it. A placement for a tenant holds the lock of
the tenant's quota, so that of two such claims the second sees the first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, CompoundSelect, Select, Uuid, bindparam, or_, select, union, union_all
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.resources import Level, ReservationCreate, SliceCreate, SliceState
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Gpu, Host, Slice
from vgpumgr_api.db.reservations import Hold, Reservation


@dataclass(frozen=True)
class Vm:
    """A VM. All its slices must be on one host."""

    tenant_id: UUID
    uuid: UUID

    def parameters(self) -> dict[str, Any]:
        return {"vm_tenant": self.tenant_id, "vm": self.uuid}


_THERE = aliased(Gpu)

OF_VM = (
    select(Gpu.host_id)
    .join(Slice, Slice.gpu_id == Gpu.id)
    .where(
        Slice.tenant_id == bindparam("vm_tenant", type_=Uuid()),
        Slice.vm_uuid == bindparam("vm", type_=Uuid()),
        Slice.state == SliceState.CLAIMED.value,
    )
    .order_by(Slice.created_at.desc())
    .limit(1)
    .correlate(None)
)
"""Selects the host of the VM in `Vm.parameters`; no row if the VM has no slices. If its claims named several hosts, the
host of its newest slice is selected.
"""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """An anti-affinity. `level`: the claim's; other slices of the tenant may have a stricter one.

    `without`: a reserved place that is ignored.
    """

    tenant_id: UUID
    key: str
    level: Level
    without: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class TiesShape:
    """The properties of ties that the text of a statement depends on.

    `together`: for each place, whether it is one GPU. `without`: whether a reserved place is ignored.
    """

    together: tuple[bool, ...] = ()
    apart: Level | None = None
    without: bool = False

    def obstacles(self) -> dict[str, ColumnElement[bool]]:
        """Returns the obstacles to a claim with these ties, by reason."""
        found: dict[str, ColumnElement[bool]] = {}
        if self.together:
            found["affinity.apart"] = or_(
                *(
                    (Gpu.id if on_gpu else Gpu.host_id) != bindparam(f"together_{number}", type_=Uuid())
                    for number, on_gpu in enumerate(self.together)
                )
            )
        if self.apart is not None:
            found["anti_affinity.taken"] = or_(
                Gpu.host_id.in_(_hosts_kept_away(self._places, strict=self.apart is Level.GPU)),
                Gpu.id.in_(_kept_away(self._places)),
            )
        return found

    @property
    def _places(self) -> Select[UUID]:
        if not self.without:
            return _OF_PLACES
        return _OF_PLACES.where(Hold.id != bindparam("apart_without", type_=Uuid()))


@dataclass(frozen=True, kw_only=True)
class Ties:
    """The ties of a claim. `together`: each (host, GPU) where the slice must be; None for any GPU of the host."""

    together: tuple[tuple[UUID, UUID | None], ...] = ()
    apart: Apart | None = None

    @property
    def shape(self) -> TiesShape:
        return TiesShape(
            together=tuple(gpu_id is not None for _, gpu_id in self.together),
            apart=None if self.apart is None else self.apart.level,
            without=self.apart is not None and self.apart.without is not None,
        )

    def parameters(self) -> Mapping[str, Any]:
        """Returns the parameters of statements built from the shape's obstacles."""
        found: dict[str, Any] = {
            f"together_{number}": gpu_id or host_id for number, (host_id, gpu_id) in enumerate(self.together)
        }
        if self.apart is not None:
            found |= {"apart_tenant": self.apart.tenant_id, "apart_key": self.apart.key}
            if self.apart.without is not None:
                found["apart_without"] = self.apart.without
        return found


NO_TIES = Ties()


def ties_of(
    session: Session, tenant_id: UUID, request: SliceCreate | ReservationCreate, *, without: UUID | None = None
) -> Ties:
    """Returns the current ties of a claim, or of a place that is to be reserved.

    `without`: a place that is to be given up, or a slice that is to be moved to another host; it is ignored. A slice
    that is being deleted attracts no other slice, and keeps others away until it is gone. A slice that was lost with
    its host does neither.
    """
    if request.affinity is None and request.anti_affinity is None:
        return NO_TIES
    together: set[tuple[UUID, UUID | None]] = set()
    if (tie := request.affinity) is not None:
        members = (
            select(Gpu.host_id, Slice.gpu_id, Slice.affinity_level)
            .join(Gpu, Gpu.id == Slice.gpu_id)
            .where(Slice.tenant_id == tenant_id, Slice.affinity == tie.key, Slice.state == SliceState.CLAIMED.value)
        )
        if without is not None:
            members = members.where(Slice.id != without)
        places = (
            select(Gpu.host_id, Hold.gpu_id, Reservation.affinity_level)
            .select_from(Hold)
            .join(Reservation, Reservation.id == Hold.reservation_id)
            .join(Gpu, Gpu.id == Hold.gpu_id)
            .join(Host, Host.id == Gpu.host_id)
            .where(
                Reservation.tenant_id == tenant_id,
                Reservation.affinity == tie.key,
                Reservation.expires_at > now(session),
                Host.fenced_at.is_(None),
            )
        )
        if without is not None:
            places = places.where(Hold.id != without)
        for host_id, gpu_id, level in session.execute(union(members, places)):
            on_gpu = Level.GPU in (tie.level, level)
            together.add((host_id, gpu_id if on_gpu else None))
    away = request.anti_affinity
    return Ties(
        together=tuple(sorted(together, key=str)),
        apart=None if away is None else Apart(tenant_id=tenant_id, key=away.key, level=away.level, without=without),
    )


_OF_SLICES = (
    select(Slice.gpu_id)
    .select_from(Slice)
    .where(
        Slice.tenant_id == bindparam("apart_tenant", type_=Uuid()),
        Slice.anti_affinity == bindparam("apart_key"),
        Slice.state != SliceState.LOST.value,
    )
    .correlate(None)
)
_OF_PLACES = (
    select(Hold.gpu_id)
    .select_from(Hold)
    .join(Reservation, Reservation.id == Hold.reservation_id)
    .where(
        Reservation.tenant_id == bindparam("apart_tenant", type_=Uuid()),
        Reservation.anti_affinity == bindparam("apart_key"),
    )
    .correlate(None)
)


def _kept_away(of_places: Select[UUID]) -> CompoundSelect[UUID]:
    """Selects GPUs with a slice or a place of this anti-affinity."""
    return union_all(_OF_SLICES, of_places)


def _hosts_kept_away(of_places: Select[UUID], *, strict: bool) -> CompoundSelect[UUID]:
    """Selects the hosts of such GPUs. `strict`: only for slices and places whose level is the host."""
    slices = _OF_SLICES.with_only_columns(_THERE.host_id).join(_THERE, _THERE.id == Slice.gpu_id)
    places = of_places.with_only_columns(_THERE.host_id).join(_THERE, _THERE.id == Hold.gpu_id)
    if strict:
        slices = slices.where(Slice.anti_affinity_level == Level.HOST.value)
        places = places.where(Reservation.anti_affinity_level == Level.HOST.value)
    return union_all(slices, places)
