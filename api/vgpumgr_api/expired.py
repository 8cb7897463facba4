# SPDX-License-Identifier: Apache-2.0
"""What routes have in common that reservations stand in the way of: one that has expired does not."""

from collections.abc import Callable
from typing import TypeVar

from vgpumgr.wire.problem import Code
from vgpumgr_api.call import Call, database_of
from vgpumgr_api.errors import Refusal, ReservedRefusal
from vgpumgr_api.services import reservations

A = TypeVar("A")

AT_ONCE = 1000

NO_ROOM = (Code.QUOTA_EXCEEDED, Code.CAPACITY_NONE)


def despite_expired(call: Call, attempt: Callable[[], A]) -> A:
    """Returns what `attempt` does; one that is refused for want of room, or for reservations, is repeated if something
    that expired was given back.
    """
    try:
        return attempt()
    except Refusal as refusal:
        hindered = refusal.code in NO_ROOM or isinstance(refusal, ReservedRefusal)
        if not hindered or not give_expired_back(call):
            raise
    return attempt()


def give_expired_back(call: Call) -> bool:
    """Ends reservations whose time is over, each in a transaction of its own; False if none could be."""
    database = database_of(call.request)
    ended = 0
    try:
        while ended < AT_ONCE and database.run(reservations.expire):
            ended += 1
    except Refusal as refusal:
        if refusal.code is not Code.DATABASE_BUSY:
            raise
    return ended > 0
