# SPDX-License-Identifier: Apache-2.0
"""Affinity and anti-affinity between slices of one tenant. Both are hard: a claim that cannot keep them is refused.

Whoever places a slice of a tenant holds the lock of the tenant's quota, so that no two such claims miss each other.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.resources import Level, SliceCreate, SliceState
from vgpumgr_api.db.models import Gpu, Slice


@dataclass(frozen=True, kw_only=True)
class Ties:
    """`together`: the (host, GPU) where a slice has to be, any GPU of it for None. `apart`: conditions on GPUs."""

    together: tuple[tuple[UUID, UUID | None], ...] = ()
    apart: ColumnElement[bool] | None = None

    def obstacles(self) -> dict[str, ColumnElement[bool]]:
        """What is wrong with a GPU for this claim, by reason."""
        found: dict[str, ColumnElement[bool]] = {}
        if self.together:
            found["affinity.apart"] = or_(
                *(Gpu.host_id != host_id if gpu_id is None else Gpu.id != gpu_id for host_id, gpu_id in self.together)
            )
        if self.apart is not None:
            found["anti_affinity.taken"] = self.apart
        return found


def ties_of(session: Session, tenant_id: UUID, request: SliceCreate) -> Ties:
    """Returns what a claim's ties demand now.

    A slice that is being deleted draws no other to it, and keeps others away until it is gone. One that was lost with
    its host does neither.
    """
    together: set[tuple[UUID, UUID | None]] = set()
    apart: ColumnElement[bool] | None = None
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
    if (tie := request.anti_affinity) is not None:
        hosts = _kept_away(Gpu.host_id, tenant_id, tie.key).join(Gpu, Gpu.id == Slice.gpu_id)
        if tie.level is Level.GPU:
            hosts = hosts.where(Slice.anti_affinity_level == Level.HOST.value)
        apart = or_(Gpu.host_id.in_(hosts.correlate(None)), Gpu.id.in_(_kept_away(Slice.gpu_id, tenant_id, tie.key)))
    return Ties(together=tuple(sorted(together, key=str)), apart=apart)


def _kept_away(column: Any, tenant_id: UUID, key: str) -> Select[UUID]:
    return (
        select(column)
        .select_from(Slice)
        .where(Slice.tenant_id == tenant_id, Slice.anti_affinity == key, Slice.state != SliceState.LOST.value)
    )
