# SPDX-License-Identifier: Apache-2.0
"""Detects that the file that SQLite writes to was removed or replaced.

A removed or replaced file can still be written to while it is open, but what is written is never read. The same holds
for the write-ahead log and its index beside it, which exist as long as a connection does.
"""

import os
import threading
from pathlib import Path

from sqlalchemy.engine import URL

BESIDE = ("-wal", "-shm")

_Identity = tuple[int, int] | None
"""Device and inode; None if there is no such file."""


class DatabaseFile:
    """The file of one connection pool, compared with its identity at the first connection. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._connections = 0
        self._seen: dict[str, _Identity] = {}

    def opened(self) -> None:
        """Records a new connection, which has read the file."""
        main, real = str(self.path), os.path.realpath(self.path)
        with self._guard:
            self._connections += 1
            self._seen.setdefault(main, _identity(main))
            if self._connections == 1:
                self._seen |= {real + each: _identity(real + each) for each in BESIDE}

    def closing(self) -> None:
        """Records the end of a connection. With the last connection SQLite removes the log and the index."""
        with self._guard:
            self._connections -= 1
            if self._connections == 0:
                self._seen = {name: seen for name, seen in self._seen.items() if name == str(self.path)}

    def fault(self) -> str | None:
        """Returns what is wrong, or None if the files are unchanged. Costs microseconds."""
        for name, seen in tuple(self._seen.items()):
            found = _identity(name)
            if seen is None:  # a new database has no log before the first write
                self._found(name, found)
            elif found != seen:
                return f"{name} was {'removed' if found is None else 'replaced'} while the API has it open"
        return None

    def _found(self, name: str, identity: _Identity) -> None:
        with self._guard:
            if name in self._seen and self._seen[name] is None:
                self._seen[name] = identity


def of_url(url: URL) -> DatabaseFile | None:
    """Returns the file of a URL, None for a database in memory."""
    name = url.database or ""
    if name in ("", ":memory:") or name.startswith("file:"):
        return None
    return DatabaseFile(Path(name).absolute())


def _identity(name: str) -> _Identity:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
