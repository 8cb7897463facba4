# SPDX-License-Identifier: Apache-2.0
"""Why a database cannot be used though it is there: what clients are told, and what the log says of the cause.

Clients hear the reason and no path or name of a server; those are for the log, once for each time it begins.
"""

import logging
import sqlite3
import threading
from enum import StrEnum

from sqlalchemy.exc import DBAPIError

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

log = logging.getLogger("vgpumgr_api.database")


class Trouble(StrEnum):
    """`unreachable` counts as busy: it may be over in a moment."""

    FILE_GONE = "file_gone"
    FULL = "full"
    IO = "io"
    READ_ONLY = "read_only"
    UNREACHABLE = "unreachable"


SAID = {
    Trouble.FILE_GONE: "the database's file was removed or replaced; put it back, or start the API anew",
    Trouble.FULL: "the disk of the database is full; make room there",
    Trouble.IO: "the disk of the database fails; see the log of the API",
    Trouble.READ_ONLY: "the database can only be read; make it writable, or point the API at the one that is",
}

_SQLITE = {
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_IOERR: Trouble.IO,
    sqlite3.SQLITE_CORRUPT: Trouble.IO,
    sqlite3.SQLITE_NOTADB: Trouble.IO,
    sqlite3.SQLITE_READONLY: Trouble.READ_ONLY,
}

# disk_full, io_error, read_only_sql_transaction
_POSTGRESQL = {"53100": Trouble.FULL, "58030": Trouble.IO, "25006": Trouble.READ_ONLY}


def trouble_of(error: DBAPIError) -> Trouble | None:
    """Returns what is wrong with the database by an error of its driver; None if it is something else."""
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF)
    return _POSTGRESQL.get(getattr(error.orig, "sqlstate", None) or "")


def first_line(error: DBAPIError) -> str:
    """What the driver said, in one line."""
    said = str(error.orig).strip().splitlines()
    return said[0] if said else type(error.orig).__name__


def unusable(trouble: Trouble) -> Refusal:
    """What clients are told."""
    return Refusal(Code.DATABASE_UNUSABLE, f"{SAID[trouble]}; nothing was stored")


class Condition:
    """How the last transaction found the database; threads share it."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self._guard = threading.Lock()

    def note(self, trouble: Trouble, cause: str) -> None:
        """Logs the cause, unless it is the trouble that there was before."""
        with self._guard:
            before, self.trouble = self.trouble, trouble
        if before is not trouble:
            log.error("the database cannot be used (%s): %s", trouble.value, cause)

    def worked(self, *, stored: bool) -> None:
        """A transaction was carried out. One that stored nothing says nothing about writing."""
        if self.trouble is None or (not stored and self.trouble in (Trouble.FULL, Trouble.IO, Trouble.READ_ONLY)):
            return
        with self._guard:
            before, self.trouble = self.trouble, None
        if before is not None:
            log.info("the database can be used again (%s)", before.value)
