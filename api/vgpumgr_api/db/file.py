# SPDX-License-Identifier: Apache-2.0
"""Whether the file that SQLite writes to is still the one that its name leads to.

A file that was removed or replaced can be written to as long as it is open, and nobody ever reads that. The same holds
for the log and the index beside it, which are there as long as a connection is.
"""

import os
import threading
from pathlib import Path

from sqlalchemy.engine import URL

BESIDE = ("-wal", "-shm")

_Identity = tuple[int, int] | None
"""Device and inode; None: there is no such file."""


class DatabaseFile:
    """The file of one pool of connections, compared with what it was when they were made. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = threading.Lock()
        self._connections = 0
        self._seen: dict[str, _Identity] = {}

    def opened(self) -> None:
        """A connection was made, and has read."""
        main, real = str(self.path), os.path.realpath(self.path)
        with self._guard:
            self._connections += 1
            self._seen.setdefault(main, _identity(main))
            if self._connections == 1:
                self._seen |= {real + each: _identity(real + each) for each in BESIDE}

    def closing(self) -> None:
        """A connection ends. With the last one SQLite removes what is beside the file."""
        with self._guard:
            self._connections -= 1
            if self._connections == 0:
                self._seen = {name: seen for name, seen in self._seen.items() if name == str(self.path)}

    def fault(self) -> str | None:
        """Returns what is wrong, None if all is as it was. Costs microseconds."""
        for name, seen in tuple(self._seen.items()):
            found = _identity(name)
            if seen is None:  # a new database gets its log when it is first written to
                self._found(name, found)
            elif found != seen:
                return f"{name} was {'removed' if found is None else 'replaced'} while the API has it open"
        return None

    def _found(self, name: str, identity: _Identity) -> None:
        with self._guard:
            if name in self._seen and self._seen[name] is None:
                self._seen[name] = identity


def of_url(url: URL) -> DatabaseFile | None:
    """None for a database in memory."""
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
