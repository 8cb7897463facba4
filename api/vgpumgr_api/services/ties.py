# SPDX-License-Identifier: Apache-2.0
"""Affinity and anti-affinity between slices of one tenant. Both are hard: a claim that cannot keep them is refused.

Whoever places a slice of a tenant holds the lock of the tenant's quota, so that no two such claims miss each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Uuid, bindparam, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.resources import Level, SliceCreate, SliceState
from vgpumgr_api.db.models import Gpu, Slice


@dataclass(frozen=True)
class Vm:
    """All slices of a VM are on one host."""

    tenant_id: UUID
    uuid: UUID

    def parameters(self) -> dict[str, Any]:
        return {"vm_tenant": self.tenant_id, "vm": self.uuid}


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
"""The host of a VM with these `parameters`, none while it has no slice; of the newest if claims named several hosts."""


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Not where the tenant has slices of this anti-affinity; `level`: the claim's, theirs may be stricter."""

    tenant_id: UUID
    key: str
    level: Level


@dataclass(frozen=True, kw_only=True)
class TiesShape:
    """What of ties the text of a statement depends on. `together`: for each place whether it is one GPU."""

    together: tuple[bool, ...] = ()
    apart: Level | None = None

    def obstacles(self) -> dict[str, ColumnElement[bool]]:
        """What is wrong with a GPU for a claim with such ties, by reason."""
        found: dict[str, ColumnElement[bool]] = {}
        if self.together:
            found["affinity.apart"] = or_(
                *(
                    (Gpu.id if on_gpu else Gpu.host_id) != bindparam(f"together_{number}", type_=Uuid())
                    for number, on_gpu in enumerate(self.together)
                )
            )
        if self.apart is not None:
            hosts = _kept_away(Gpu.host_id).join(Gpu, Gpu.id == Slice.gpu_id)
            if self.apart is Level.GPU:
                hosts = hosts.where(Slice.anti_affinity_level == Level.HOST.value)
            found["anti_affinity.taken"] = or_(
                Gpu.host_id.in_(hosts.correlate(None)), Gpu.id.in_(_kept_away(Slice.gpu_id))
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Ties:
    """`together`: the (host, GPU) where a slice has to be, any GPU of it for None."""

    together: tuple[tuple[UUID, UUID | None], ...] = ()
    apart: Apart | None = None

    @property
    def shape(self) -> TiesShape:
        return TiesShape(
            together=tuple(gpu_id is not None for _, gpu_id in self.together),
            apart=None if self.apart is None else self.apart.level,
        )

    def parameters(self) -> Mapping[str, Any]:
        """For statements that are made of the shape's obstacles."""
        found: dict[str, Any] = {
            f"together_{number}": gpu_id or host_id for number, (host_id, gpu_id) in enumerate(self.together)
        }
        if self.apart is not None:
            found |= {"apart_tenant": self.apart.tenant_id, "apart_key": self.apart.key}
        return found


NO_TIES = Ties()


def ties_of(session: Session, tenant_id: UUID, request: SliceCreate) -> Ties:
    """Returns what a claim's ties demand now.

    A slice that is being deleted draws no other to it, and keeps others away until it is gone. One that was lost with
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
            .distinct()
        )
        for host_id, gpu_id, level in session.execute(members):
            on_gpu = Level.GPU in (tie.level, level)
            together.add((host_id, gpu_id if on_gpu else None))
    away = request.anti_affinity
    return Ties(
        together=tuple(sorted(together, key=str)),
        apart=None if away is None else Apart(tenant_id=tenant_id, key=away.key, level=away.level),
    )


def _kept_away(column: Any) -> Select[UUID]:
    return (
        select(column)
        .select_from(Slice)
        .where(
            Slice.tenant_id == bindparam("apart_tenant", type_=Uuid()),
            Slice.anti_affinity == bindparam("apart_key"),
            Slice.state != SliceState.LOST.value,
        )
    )
