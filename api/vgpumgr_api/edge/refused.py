# SPDX-License-Identifier: Apache-2.0
"""Enters refusals of authenticated actors in the audit: no permission, an expired or void credential, no quota.

An entry contains the actor, the request's method, path and names, and the code; nothing else of the request, so no
secret. It is written in its own transaction, because that of the request was rolled back. A failure to write it does
not replace the answer, but is logged. The audit is never trimmed. So that no client can fill it, equal refusals of one
credential give one entry an hour, with their number. Each replica counts separately, and forgets the refusals that were
entered longest ago.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import audit
from vgpumgr_api.observe.exchange import method_of, route_of

if TYPE_CHECKING:
    from vgpumgr_api.actors import Actor

AGAIN_S = 3600.0
KEPT_MAX = 10_000
QUOTA = (Code.QUOTA_EXCEEDED, Code.QUOTA_FORBIDDEN)
NOTED = (Code.PERMISSION_DENIED, Code.HOST_FENCED, Code.AUTH_EXPIRED, Code.AUTH_INVALID, *QUOTA)

log = logging.getLogger("vgpumgr_api.edge.refused")

_NAMED = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_PLACE = re.compile(r"\{(\w+)\}")

Run = Callable[[Callable[[Session], None]], None]


class Refused:
    """Belongs to the event loop of one server. `run` runs one transaction. `clock` counts seconds from any start."""

    def __init__(self, run: Run, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._since: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()

    async def note(self, request: Request, refusal: Refusal) -> None:
        """Enters a refused request in the audit, if its actor is known."""
        known: Actor | None = refusal.by or getattr(request.state, "actor", None)
        if known is None or refusal.code not in NOTED or (refusal.code in QUOTA and _trial(request)):
            return
        source = request.client.host if request.client else ""
        actor = replace(known, request_id=request.state.request_id, source=source)
        asked = f"{method_of(request.scope)} {route_of(request.scope)}"
        before = self._count((str(actor.token_id), actor.name, asked, refusal.code.value))
        if before is None:
            return
        detail: dict[str, Any] = {"code": refusal.code.value}
        if codes := sorted({reason.code for reason in refusal.reasons}):
            detail["reasons"] = codes
        if before:
            detail["more_before"] = before
        try:
            await run_in_threadpool(
                self._run, lambda session: audit.refused(session, actor, _with_names(request, asked), detail)
            )
        except Exception:
            log.exception("request %s: the audit lacks that %s was refused: %s", actor.request_id, actor.name, asked)

    def _count(self, what: tuple[str, ...]) -> int | None:
        """Returns how many refusals were left out since the last entry; None if this one is to be left out, too."""
        since, left_out = self._since.get(what, (None, 0))
        now = self._clock()
        if since is not None and now - since < AGAIN_S:
            self._since[what] = (since, left_out + 1)
            return None
        self._since[what] = (now, 0)
        self._since.move_to_end(what)
        if len(self._since) > KEPT_MAX:
            self._since.popitem(last=False)
        return left_out


def _trial(request: Request) -> bool:
    return request.query_params.get("validate_only") == "true"


def _with_names(request: Request, asked: str) -> str:
    """Returns the path with names and UUIDs filled in. Other values may be secrets and are left out."""

    def name(place: re.Match[str]) -> str:
        given = str(request.path_params.get(place[1], ""))
        return given if _NAMED.fullmatch(given) else place[0]

    return _PLACE.sub(name, asked)
