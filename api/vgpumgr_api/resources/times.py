# SPDX-License-Identifier: Apache-2.0
"""The time ranges of lists."""

from datetime import datetime

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.errors import Refusal


def require_order(since: datetime | None, until: datetime | None) -> None:
    """Refuses an empty range, whose answer would look like one in which nothing happened. None: no bound."""
    if since is not None and until is not None and since >= until:
        detail = "until is not after since"
        reason = Reason(code=Code.FIELD_INVALID, detail=detail, field="query.until")
        raise Refusal(Code.FIELD_INVALID, detail, reasons=(reason,))
