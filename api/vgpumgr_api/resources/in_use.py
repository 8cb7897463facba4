# SPDX-License-Identifier: Apache-2.0
"""Refuses changes and deletions of objects in use, naming their users.

Only for operators, who may see all users, and so learn whose VMs are affected.
"""

from collections.abc import Iterable, Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason, Subject
from vgpumgr_api.db.models import Slice, Tenant
from vgpumgr_api.db.reservations import Hold, Reservation
from vgpumgr_api.errors import Refusal, ReservedRefusal

NAMED_MAX = 20


def refuse_slices(session: Session, *those: ColumnElement[bool], found: str, advice: str) -> None:
    """Raises Refusal(OBJECT_IN_USE) if there are slices that meet the conditions.

    `found` is the text before their number; `advice` says what to do about them.
    """
    number = func.count().over().label("number")
    rows = session.execute(
        select(Slice.id, Slice.vm_uuid, number).where(*those).order_by(Slice.id).limit(NAMED_MAX)
    ).all()
    if rows:
        named = [Subject(kind="slice", id=row.id, vm_uuid=row.vm_uuid) for row in rows]
        many = "" if rows[0].number == 1 else f"{rows[0].number} slices, such as "
        why = f"{found} {many}{_detail(named[0])}; {advice}"
        raise Refusal(Code.OBJECT_IN_USE, why, reasons=_reasons(named))


def refuse_projects(session: Session, account: Tenant) -> None:
    """Raises Refusal(OBJECT_IN_USE) if an account has projects."""
    names = session.scalars(
        select(Tenant.name).where(Tenant.account_id == account.id).order_by(Tenant.name).limit(NAMED_MAX)
    ).all()
    if names:
        named = [Subject(kind="tenant", name=each) for each in names]
        why = f"account {account.name} still has projects; delete those first"
        raise Refusal(Code.OBJECT_IN_USE, why, reasons=_reasons(named))


def refuse_reservations(session: Session, *those: ColumnElement[bool], why: str) -> None:
    """Raises ReservedRefusal if there are reservations that meet the conditions. `why` is the whole text."""
    found = select(Reservation.id).where(*those)
    _refuse_reserved(session.scalars(found.order_by(Reservation.id).limit(NAMED_MAX)), why)


def refuse_held(session: Session, gpus: Sequence[UUID], *, why: str) -> None:
    """Raises ReservedRefusal if reservations have places on one of these GPUs. `why` is the whole text."""
    holds = select(Hold.reservation_id).where(Hold.gpu_id.in_(gpus)).distinct()
    _refuse_reserved(session.scalars(holds.order_by(Hold.reservation_id).limit(NAMED_MAX)), why)


def _refuse_reserved(reservations: Iterable[UUID], why: str) -> None:
    if named := [Subject(kind="reservation", id=each) for each in reservations]:
        raise ReservedRefusal(Code.OBJECT_IN_USE, why, reasons=_reasons(named))


def _reasons(named: Iterable[Subject]) -> tuple[Reason, ...]:
    return tuple(Reason(code=Code.OBJECT_IN_USE, detail=_detail(each), about=each) for each in named)


def _detail(one: Subject) -> str:
    if one.kind == "slice":
        return f"slice {one.id} for {'no VM yet' if one.vm_uuid is None else f'VM {one.vm_uuid}'}"
    return f"project {one.name}" if one.kind == "tenant" else f"{one.kind} {one.id}"
