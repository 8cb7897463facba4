# SPDX-License-Identifier: Apache-2.0
"""Retries while the API is away: a wait of hours survives the restart of a replica."""

from collections.abc import Callable
from typing import TypeVar

from vgpumgr.cli.failures import Status, status
from vgpumgr.cli.session import Session
from vgpumgr.errors import VgpumgrError

Answer = TypeVar("Answer")

PAUSE_S = 2.0


def patiently(session: Session, ask: Callable[[], Answer], *, until_s: float) -> Answer:
    """Return what `ask` returns. While the API is unreachable or busy, call `ask` again; print one note about this.

    `until_s`: a time of the session's clock, after which any error of `ask` is raised.
    """
    told = False
    while True:
        try:
            return ask()
        except VgpumgrError as error:
            left_s = until_s - session.clock()
            if status(error) is not Status.UNREACHABLE or left_s <= 0:
                raise
            if not told:
                session.note(f"{error.code}: {error}; still waiting")
            told = True
            session.sleep(min(PAUSE_S, left_s))
