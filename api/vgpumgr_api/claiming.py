# SPDX-License-Identifier: Apache-2.0
"""What routes that claim have in common: no claim is refused for the sake of a reservation that has expired."""

from collections.abc import Callable
from typing import TypeVar

from vgpumgr.wire.problem import Code
from vgpumgr_api.call import Call, database_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import reservations

A = TypeVar("A")

AT_ONCE = 1000


def claiming(call: Call, attempt: Callable[[], A]) -> A:
    """Returns what `attempt` does; one that is refused for want of room is repeated if something expired gives some."""
    try:
        return attempt()
    except Refusal as refusal:
        if refusal.code not in (Code.QUOTA_EXCEEDED, Code.CAPACITY_NONE) or not give_expired_back(call):
            raise
    return attempt()


def give_expired_back(call: Call) -> bool:
    """Ends reservations whose time is over, each in a transaction of its own; False if there were none."""
    database = database_of(call.request)
    for ended in range(AT_ONCE):
        if not database.run(reservations.expire):
            return ended > 0
    return True
