# SPDX-License-Identifier: Apache-2.0
"""Refusing to change or delete what slices depend on, by name: whoever asked then knows whose VMs are in the way.

For operators alone, who may see every slice.
"""

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.db.models import Slice
from vgpumgr_api.errors import Refusal

NAMED_MAX = 20


def refuse_slices(session: Session, *those: ColumnElement[bool], found: str, advice: str) -> None:
    """Raises Refusal(OBJECT_IN_USE) if there are slices of which that is true.

    `found` goes before how many there are, `advice` is what to do about them.
    """
    number = func.count().over().label("number")
    rows = session.execute(select(Slice.id, Slice.vm_uuid, number).where(*those).order_by(Slice.id).limit(NAMED_MAX))
    named = [(f"slice {row.id} for {'no VM yet' if row.vm_uuid is None else f'VM {row.vm_uuid}'}", row) for row in rows]
    if named:
        first, row = named[0]
        raise Refusal(
            Code.OBJECT_IN_USE,
            f"{found} {row.number} slices, such as {first}; {advice}",
            reasons=tuple(Reason(code=Code.OBJECT_IN_USE, detail=detail) for detail, _ in named),
        )
