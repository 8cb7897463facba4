# SPDX-License-Identifier: Apache-2.0
"""The changes that a merge patch asks for."""

from collections.abc import Collection
from typing import Any

from vgpumgr.wire.common import Request
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.errors import Refusal


def changes_of(patch: Request, *, removable: Collection[str] = ()) -> dict[str, Any]:
    """Returns the members that were sent. Only those of `removable` may be null, which removes them (RFC 7396)."""
    changes = {name: getattr(patch, name) for name in sorted(patch.model_fields_set)}
    if nulls := [name for name, value in changes.items() if value is None and name not in removable]:
        detail = f"{nulls[0]} cannot be removed; send a value, or leave it out"
        raise Refusal(
            Code.FIELD_INVALID,
            detail,
            reasons=tuple(
                Reason(code=Code.FIELD_INVALID, detail="cannot be null", field=f"$.{name}") for name in nulls
            ),
        )
    return changes
