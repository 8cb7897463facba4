# SPDX-License-Identifier: Apache-2.0
"""One transaction that has done everything except commit, and another that arrives meanwhile. PostgreSQL only."""

import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal

from tests.api.concurrency.audit import Audit

PATIENCE_S = 20.0


def behind(
    database: Database,
    url: str,
    first: Callable[[Session], Any],
    late: Callable[[], Any],
    *,
    then: Callable[[Session], Any] = lambda _: None,
) -> tuple[Any, Any, bool]:
    """Waits until `late` waits for a lock of `first` or has ended without waiting; then calls `then`, and `first`
    commits.

    Returns the results or refusals of the two, and whether `late` waited.
    """
    said, may_commit = threading.Event(), threading.Event()
    waited = False

    def held(session: Session) -> Any:
        answer = first(session)
        session.flush()
        said.set()
        assert may_commit.wait(PATIENCE_S)
        then(session)
        return answer

    outcomes: dict[str, Any] = {}
    one = threading.Thread(target=_keep, args=(outcomes, "first", lambda: database.run(held)))
    other = threading.Thread(target=_keep, args=(outcomes, "late", late))
    one.start()
    try:
        assert said.wait(PATIENCE_S), outcomes
        other.start()
        audit, deadline = Audit(url), time.monotonic() + PATIENCE_S
        with audit.connected():
            while other.is_alive() and not waited:
                assert time.monotonic() < deadline, "it neither waits nor ends"
                waited = audit.ask("SELECT count(*) FROM pg_locks WHERE NOT granted")[0][0] > 0
                time.sleep(0.02)
    finally:
        may_commit.set()
        one.join(PATIENCE_S)
    other.join(PATIENCE_S)
    for outcome in outcomes.values():
        if isinstance(outcome, BaseException) and not isinstance(outcome, Refusal):
            raise outcome
    return outcomes["first"], outcomes["late"], waited


def _keep(outcomes: dict[str, Any], name: str, act: Callable[[], Any]) -> None:
    try:
        outcomes[name] = act()
    except BaseException as error:
        outcomes[name] = error
