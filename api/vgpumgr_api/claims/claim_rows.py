# SPDX-License-Identifier: Apache-2.0
"""The rows written for a claim once its GPU is charged: claim, grant for the ledger, event and audit entry."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Boolean, Insert, bindparam, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Workload
from vgpumgr_api.actors import Actor
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.statements import Together, parameters_for, prefixed, table_of
from vgpumgr_api.events import events
from vgpumgr_api.placement.placement import Place
from vgpumgr_api.resources.generations import BUMP_CLAIMED
from vgpumgr_api.resources.idempotency import ANSWERED
from vgpumgr_api.resources.lookup import Claiming
from vgpumgr_api.usage import grants

KIND = "slice.claimed"

_SLICES = table_of(models.Slice)
_COLUMNS = tuple(column.name for column in _SLICES.c)
_TYPES = table_of(models.GpuType)
_OF_TYPE = {"gpu_id": "gpu_id", "mdev_type": "mdev_type", "mem_bytes": "type_mem_bytes"}


_CLAIM = parameters_for(models.Slice, "claim", _COLUMNS)


def _inserted() -> Insert:
    """Returns an INSERT, which adds no row if a report removed the chosen mdev type before the GPU was locked."""
    same = [_TYPES.c[name] == _CLAIM[of] for name, of in _OF_TYPE.items()]
    held = ~bindparam("chosen", type_=Boolean())
    found = select(*_CLAIM.values()).where(or_(held, select(_TYPES.c.gpu_id).where(*same).exists()))
    return _SLICES.insert().from_select(list(_CLAIM), found)


_NEW = (_inserted(), *events.INSERTS, grants.beginning(_CLAIM))
_ROWS = {
    (bump, kept): Together(*_NEW, *([BUMP_CLAIMED] if bump else ()), *([ANSWERED] if kept else ()))
    for bump in (False, True)
    for kept in (False, True)
}


def write(
    session: Session,
    actor: Actor,
    claim: models.Slice,
    who: Claiming,
    profile: str,
    place: Place,
    *,
    bump: bool,
    kept: Mapping[str, Any] | None,
) -> None:
    """Writes the rows of a claim.

    `bump`: also advances the host's desired generation, which locks the host; see `bump_claimed`. `kept`: parameters of
    `ANSWERED`, to also store the answer for a repeated request. Raises TryAgain if the host takes no more claims, or no
    longer has the mdev type.
    """
    typed = claim.workload == Workload.VM.value
    detail = {"profile": profile, "vm_uuid": str(claim.vm_uuid) if claim.vm_uuid else None}
    if not typed:
        detail = {"profile": profile, "workload": claim.workload}
    parameters = {
        **prefixed("claim", {name: getattr(claim, name) for name in _COLUMNS}),
        **events.said(session, actor, KIND, claim.id, tenant=who.tenant, generation=claim.generation, detail=detail),
        **grants.life(who.tenant, who.account, place.host, place.gpu.address),
        "chosen": place.chosen and typed,
        "claimed_on": place.host_id,
        **(kept or {}),
    }
    if not _ROWS[bump, kept is not None].run(session, parameters):
        raise TryAgain
