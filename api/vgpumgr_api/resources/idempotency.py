# SPDX-License-Identifier: Apache-2.0
"""Repeatable requests: the first answer is kept for a day, stored in the transaction that produced it."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import bindparam, delete, select, tuple_, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Answer
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.actors import Actor, require_credential
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.records import IdempotencyKey
from vgpumgr_api.db.statements import change, insert_unless_there, table_of
from vgpumgr_api.db.types import Instant
from vgpumgr_api.errors import Refusal

M = TypeVar("M", bound=Answer)

KEPT = timedelta(hours=24)
SWEPT_AT_ONCE = 100
SWEPT_EVERY = 50
"""One in so many requests deletes expired keys. It deletes up to `SWEPT_AT_ONCE` keys, which is more, so that none
accumulate.
"""

_TABLE = table_of(IdempotencyKey)
_OUTDATED = IdempotencyKey.created_at < bindparam("kept_since", type_=Instant())
ANSWERED = (
    update(_TABLE)
    .where(_TABLE.c.scope == bindparam("kept_scope"), _TABLE.c.key == bindparam("kept_key"))
    .values(answer=bindparam("kept_answer"))
)
"""Stores an answer, for transactions that do so together with other rows. The parameters are those of `Begun`."""

KEY = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True)
class Once:
    """The identity of a request: its idempotency key, which matches `KEY`, and a digest of at most 64 characters."""

    key: str
    request_hash: str


@dataclass(frozen=True)
class Begun:
    """A request that arrived for the first time, and whose answer is to be kept."""

    scope: str
    key: str

    def parameters(self, answer: Answer) -> dict[str, Any]:
        return {"kept_scope": self.scope, "kept_key": self.key, "kept_answer": answer.model_dump_json()}


def once(session: Session, actor: Actor, key: str, request_hash: str, fn: Callable[[], M], kind: type[M]) -> M:
    """Returns `fn()`, or the kept answer to the same actor and key. A refusal is not kept.

    The call must come first in its transaction. Not for answers with secrets, because the answer is stored; see
    `shown_once`.
    """
    begun = begin(session, actor, Once(key, request_hash), kind)
    if not isinstance(begun, Begun):
        return begun
    answer = fn()
    session.connection().execute(ANSWERED, begun.parameters(answer))
    return answer


class _Shown(Answer):
    """Stored instead of an answer that contained a secret: the name of the object created."""

    made: str


def shown_once(session: Session, actor: Actor, request: Once, fn: Callable[[], M], made: Callable[[M], str]) -> M:
    """Returns `fn()`, whose answer contains a secret: only the name that `made` returns is kept.

    If the same actor repeats the request with the same key, this raises Refusal(SECRET_SHOWN) with that name. The call
    must come first in its transaction.
    """
    begun = begin(session, actor, request, _Shown)
    if isinstance(begun, _Shown):
        raise Refusal(
            Code.SECRET_SHOWN,
            f"this Idempotency-Key has created {begun.made}, whose secret was shown once and is not kept; if you lack"
            " it delete that token, or re-enrol that host, with a new key",
            reasons=(Reason(code=Code.SECRET_SHOWN, detail=begun.made, field="header.idempotency-key"),),
        )
    answer = fn()
    session.connection().execute(ANSWERED, begun.parameters(_Shown(made=made(answer))))
    return answer


def begin(session: Session, actor: Actor, request: Once, kind: type[M]) -> Begun | M:
    """Like `once`, for a caller that stores the answer itself in this transaction.

    Waits for a transaction with the same key.
    """
    scope = actor.scope or (actor.role.value if actor.tenant_id is None else f"{actor.role.value}:{actor.tenant_id}")
    if random.randrange(SWEPT_EVERY) == 0:
        _sweep(session)
    values = {
        "scope": scope,
        "key": request.key,
        "request_hash": request.request_hash,
        "answer": None,
        "created_at": now(session),
    }
    if not insert_unless_there(
        session, IdempotencyKey, values, outdated=_OUTDATED, parameters={"kept_since": now(session) - KEPT}
    ):
        require_credential(session, actor)
        return _replay(session, scope, request.key, request.request_hash, kind)
    return Begun(scope, request.key)


def _replay(session: Session, scope: str, key: str, request_hash: str, kind: type[M]) -> M:
    kept = session.get(IdempotencyKey, (scope, key))
    if kept is None or kept.answer is None:  # deleted by `_sweep` meanwhile
        raise TryAgain
    if kept.request_hash != request_hash:
        raise Refusal(
            Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used for another request; use a new one for each"
        )
    return kind.model_validate_json(kept.answer)


def _sweep(session: Session) -> None:
    """Deletes some expired keys, except those that another transaction is deleting."""
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
