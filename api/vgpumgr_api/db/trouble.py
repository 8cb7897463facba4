# SPDX-License-Identifier: Apache-2.0
"""Why a reachable database cannot be used: the text for clients, and the cause for the log.

Clients get the reason, but no path or server name. Those go to the log, once each time a trouble begins.
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
    """The kinds of trouble. `unreachable` is reported as DATABASE_BUSY, because it may be over in a moment."""

    FILE_GONE = "file_gone"
    FULL = "full"
    IO = "io"
    READ_ONLY = "read_only"
    UNREACHABLE = "unreachable"


SAID = {
    Trouble.FILE_GONE: "the database's file was removed or replaced; put it back, or restart the API",
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
    """Returns the trouble that a driver's error indicates; None for an error of another kind."""
    if isinstance(error.orig, sqlite3.Error):
        return _SQLITE.get(getattr(error.orig, "sqlite_errorcode", 0) & 0xFF)
    return _POSTGRESQL.get(getattr(error.orig, "sqlstate", None) or "")


def first_line(error: DBAPIError) -> str:
    """Returns the driver's message as one line."""
    said = str(error.orig).strip().splitlines()
    return said[0] if said else type(error.orig).__name__


def unusable(trouble: Trouble) -> Refusal:
    """Returns the refusal that clients get."""
    return Refusal(Code.DATABASE_UNUSABLE, f"{SAID[trouble]}; nothing was stored")


class Condition:
    """The condition of the database at the last transaction, shared by threads."""

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self._guard = threading.Lock()

    def note(self, trouble: Trouble, cause: str) -> None:
        """Records a trouble, and logs its cause unless the same trouble was recorded before."""
        with self._guard:
            before, self.trouble = self.trouble, trouble
        if before is not trouble:
            log.error("the database cannot be used (%s): %s", trouble.value, cause)

    def worked(self, *, stored: bool) -> None:
        """Records a successful transaction. One that stored nothing does not prove that writing works."""
        if self.trouble is None or (not stored and self.trouble in (Trouble.FULL, Trouble.IO, Trouble.READ_ONLY)):
            return
        with self._guard:
            before, self.trouble = self.trouble, None
        if before is not None:
            log.info("the database can be used again (%s)", before.value)
