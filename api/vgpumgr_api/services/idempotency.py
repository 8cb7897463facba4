# SPDX-License-Identifier: Apache-2.0
"""Requests that may be sent again: the first answer is kept for a day, in the transaction that earned it."""

import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import bindparam, delete, select, tuple_, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Answer
from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.records import IdempotencyKey
from vgpumgr_api.db.statements import change, insert_unless_there, table_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.actors import Actor

M = TypeVar("M", bound=Answer)

KEPT = timedelta(hours=24)
SWEPT_AT_ONCE = 100
SWEPT_EVERY = 50
"""So many requests for one that sweeps; fewer than it sweeps at once, so that it keeps up."""

_TABLE = table_of(IdempotencyKey)
_ANSWERED = update(_TABLE).where(_TABLE.c.scope == bindparam("of"), _TABLE.c.key == bindparam("named"))

_KEY = re.compile(r"[!-~]{1,255}")


def once(session: Session, actor: Actor, key: str, request_hash: str, fn: Callable[[], M], kind: type[M]) -> M:
    """Returns `fn()`, or what it returned to the same actor with the same key. A refusal is not kept.

    Must come first in its transaction: one with the same key that is under way is waited for. `request_hash` tells
    requests apart, in at most 64 characters. Not for answers with secrets, because they are stored.
    """
    if not _KEY.fullmatch(key):
        raise Refusal(Code.FIELD_INVALID, "Idempotency-Key is not 1 to 255 visible ASCII characters; send a UUID")
    scope = actor.scope or (str(actor.token_id) if actor.token_id else actor.name[:64])
    if random.randrange(SWEPT_EVERY) == 0:
        _sweep(session)
    values = {"scope": scope, "key": key, "request_hash": request_hash, "answer": None, "created_at": now(session)}
    if not insert_unless_there(
        session, IdempotencyKey, values, outdated=IdempotencyKey.created_at < now(session) - KEPT
    ):
        return _replay(session, scope, key, request_hash, kind)
    answer = fn()
    session.connection().execute(_ANSWERED, {"of": scope, "named": key, "answer": answer.model_dump_json()})
    return answer


def _replay(session: Session, scope: str, key: str, request_hash: str, kind: type[M]) -> M:
    kept = session.get(IdempotencyKey, (scope, key))
    if kept is None or kept.answer is None:  # swept meanwhile
        raise TryAgain
    if kept.request_hash != request_hash:
        raise Refusal(
            Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used for another request; use a new one for each"
        )
    return kind.model_validate_json(kept.answer)


def _sweep(session: Session) -> None:
    """Deletes some keys that are too old, leaving out those that somebody else sweeps."""
    expired = now(session) - KEPT
    row = tuple_(IdempotencyKey.scope, IdempotencyKey.key)
    change(
        session,
        delete(IdempotencyKey).where(
            row.in_(
                select(IdempotencyKey.scope, IdempotencyKey.key)
                .where(IdempotencyKey.created_at < expired)
                .limit(SWEPT_AT_ONCE)
                .with_for_update(skip_locked=True)
            )
        ),
    )
