# SPDX-License-Identifier: Apache-2.0
"""Labels of hosts and GPUs. Existing claims do not move when a label changes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from sqlalchemy import BindParameter, ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import LABELS_MAX
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.db.labels import GpuLabel, HostLabel
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.statements import change, upsert
from vgpumgr_api.errors import Refusal

_OWNER = {HostLabel: HostLabel.host_id, GpuLabel: GpuLabel.gpu_id}


def labels_of(
    session: Session, table: type[HostLabel | GpuLabel], owners: Iterable[UUID]
) -> Mapping[UUID, dict[str, str]]:
    """Returns the labels of hosts or GPUs, by owner and key; empty for an owner without labels."""
    found: dict[UUID, dict[str, str]] = defaultdict(dict)
    owner = _OWNER[table]
    statement = select(owner, table.key, table.value).where(owner.in_(list(owners))).order_by(table.key)
    for owner_id, key, value in session.execute(statement):
        found[owner_id][key] = value
    return found


def hosts_label(key: str) -> ColumnElement[str]:
    """Returns a host's label of this key, for statements about `Host`; "" if it has none."""
    found = select(HostLabel.value).where(HostLabel.host_id == Host.id, HostLabel.key == key).correlate(Host)
    return func.coalesce(found.scalar_subquery(), "")


def gpus_label(key: str | BindParameter[str]) -> ColumnElement[str]:
    """Returns a GPU's own label of this key or else its host's, for statements about `Gpu`; "" if there is none."""
    own = select(GpuLabel.value).where(GpuLabel.gpu_id == Gpu.id, GpuLabel.key == key).correlate(Gpu)
    host = select(HostLabel.value).where(HostLabel.host_id == Gpu.host_id, HostLabel.key == key).correlate(Gpu)
    return func.coalesce(own.scalar_subquery(), host.scalar_subquery(), "")


def patch_labels(
    session: Session, table: type[HostLabel | GpuLabel], owner_id: UUID, patch: Mapping[str, str | None]
) -> dict[str, dict[str, str | None]]:
    """Sets labels, removes those that are None, and returns the changes. The caller holds the owner's lock."""
    before = labels_of(session, table, [owner_id])[owner_id]
    changed = {key: value for key, value in patch.items() if before.get(key) != value}
    owner = _OWNER[table]
    gone = [key for key, value in changed.items() if value is None]
    if gone:
        change(session, delete(table).where(owner == owner_id, table.key.in_(gone)))
    upsert(
        session,
        table,
        [{owner.key: owner_id, "key": key, "value": value} for key, value in changed.items() if value is not None],
    )
    if (session.scalar(select(func.count()).where(owner == owner_id)) or 0) > LABELS_MAX:
        detail = f"at most {LABELS_MAX} labels; remove some"
        reason = Reason(code=Code.FIELD_INVALID, detail=detail, field="$.labels")
        raise Refusal(Code.FIELD_INVALID, f"$.labels: {detail}", reasons=(reason,))
    return {key: {"from": before.get(key), "to": value} for key, value in sorted(changed.items())}
