# SPDX-License-Identifier: Apache-2.0
"""For routes that reservations can block: expired reservations are ended before such a request is refused."""

import time
from collections.abc import Callable
from typing import TypeVar

from vgpumgr.wire.problem import Code
from vgpumgr_api.claims import reservations
from vgpumgr_api.edge.call import Call, database_of
from vgpumgr_api.errors import Refusal, ReservedRefusal

A = TypeVar("A")

GIVE_BACK_S = 5.0
"""How long a request continues to end reservations. Waiting for locks may take long, and the client waits meanwhile."""

NO_ROOM = (Code.QUOTA_EXCEEDED, Code.CAPACITY_NONE)


def despite_expired(call: Call, attempt: Callable[[], A]) -> A:
    """Returns the result of `attempt`, repeating it once after ending expired reservations.

    It is repeated only if it was refused for lack of room or because of reservations, and a reservation was ended.
    """
    try:
        return attempt()
    except Refusal as refusal:
        hindered = refusal.code in NO_ROOM or isinstance(refusal, ReservedRefusal)
        if not hindered or not give_expired_back(call):
            raise
    return attempt()


def give_expired_back(call: Call) -> bool:
    """Ends expired reservations, each in its own transaction. Returns False if none could be ended.

    After `GIVE_BACK_S` it begins no further transaction, and leaves the rest to the next request or to housekeeping.
    """
    database = database_of(call.request)
    until_s = time.monotonic() + GIVE_BACK_S
    ended = 0
    try:
        while (not ended or time.monotonic() < until_s) and database.run(reservations.expire):
            ended += 1
    except Refusal as refusal:
        if refusal.code is not Code.DATABASE_BUSY:
            raise
    return ended > 0
