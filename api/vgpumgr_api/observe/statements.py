# SPDX-License-Identifier: Apache-2.0
"""Observes the statements sent to the database: their number, their duration, and which were slow.

Statements are reported without their parameters, which may contain secrets or data of tenants.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, ExceptionContext, event

from vgpumgr_api.observe.logs import FIELDS

SHOWN_CHARACTERS = 1000
_BEGUN = "vgpumgr_begun"

log = logging.getLogger("vgpumgr_api.database")

Done = Callable[[str, float, BaseException | None], None]
"""Called after each statement with its text, its duration in seconds, and its error."""


def watch(engine: Engine, done: Done) -> None:
    """Calls `done` after each statement, in the thread that ran it."""

    @event.listens_for(engine, "before_cursor_execute")
    def before(_connection: Any, _cursor: Any, _statement: Any, _parameters: Any, context: Any, _many: bool) -> None:
        setattr(context, _BEGUN, time.monotonic())

    @event.listens_for(engine, "after_cursor_execute")
    def after(_connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        done(statement, time.monotonic() - getattr(context, _BEGUN), None)

    @event.listens_for(engine, "handle_error")
    def failed(context: ExceptionContext) -> None:
        begun = getattr(context.execution_context, _BEGUN, None)
        if begun is not None and context.statement is not None:
            done(context.statement, time.monotonic() - begun, context.original_exception)


def slow_log(threshold_ms: int) -> Done:
    """Returns an observer that logs each statement that took at least `threshold_ms`."""

    def done(statement: str, seconds: float, _error: BaseException | None) -> None:
        duration_ms = round(seconds * 1000)
        if duration_ms >= threshold_ms:
            shown = " ".join(statement.split())[:SHOWN_CHARACTERS]
            log.warning("slow statement: %d ms: %s", duration_ms, shown, extra={FIELDS: {"duration_ms": duration_ms}})

    return done
