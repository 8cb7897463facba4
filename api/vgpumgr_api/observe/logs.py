# SPDX-License-Identifier: Apache-2.0
"""The log on standard error: lines for people, or one JSON object per line.

Each line written for a request contains its request id and its caller, whichever code writes it; see `REQUEST`.
"""

import json
import logging
import os
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

from vgpumgr_api.observe.secrets import hide

FIELDS = "fields"
"""The attribute of a log record with structured members of its line: ``extra={FIELDS: {...}}``."""

REQUEST: ContextVar[MutableMapping[str, Any] | None] = ContextVar("request", default=None)
"""The state of the request that this thread or task works for. It has `request_id` and, once known, `caller`."""


def install(*, as_json: bool) -> None:
    """Writes the log messages of this process, from INFO on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines(timed=not read_by_journal(sys.stderr)))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    # At INFO, the messages of these loggers repeat ours, or only say that the migration step was read.
    for chatty in ("uvicorn.error", "alembic.runtime.migration"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def read_by_journal(stream: TextIO) -> bool:
    """Whether the stream is the one that JOURNAL_STREAM names, see systemd.exec(5). A redirected stream is not."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


class Lines(logging.Formatter):
    """Formats level, logger and message. `timed`: with the UTC time before them; journald adds its own time."""

    def __init__(self, *, timed: bool) -> None:
        said = "%(levelname)s %(name)s: %(message)s"
        super().__init__(f"%(asctime)s {said}" if timed else said)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line.

    Its members are `time`, `level`, `logger`, `message`; `request_id` and `actor` during a request; the record's own
    fields; `exception` if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = REQUEST.get()
        if request is not None:
            said["request_id"] = request["request_id"]
            said["actor"] = request.get("caller")
        said |= getattr(record, FIELDS, {})
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps({name: _hidden(value) for name, value in said.items()}, default=str)


def _hidden(value: Any) -> Any:
    return hide(value) if isinstance(value, str) else value
