# SPDX-License-Identifier: Apache-2.0
"""A content-addressed store of build results.

An entry is a directory `NAME/KEY`. It appears by rename when its build has succeeded and never changes afterwards, so
readers need no lock. One build of a NAME runs at a time (flock); a process that waited for it finds the entry. Entries
that nobody used for a while are removed after the next build of the same NAME; a virtual machine that still has a
removed image open keeps it.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_UNUSED_LIMIT_S = 14 * 24 * 3600.0

SHORT_LIVED_S = 2 * 3600.0
"""For entries that each change of our sources builds anew; a boot reads such an entry within seconds of asking for
it."""


def digest(parts: Iterable[str | bytes]) -> str:
    """Hash of parts; lengths are part of the hash, so that no two different lists collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(f"{len(data)}:".encode())
        total.update(data)
    return total.hexdigest()[:16]


class Cache:
    """The store below one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def entry(
        self,
        name: str,
        key: str,
        build: Callable[[Path], None],
        *,
        unused_limit_s: float = _UNUSED_LIMIT_S,
    ) -> Path:
        """Return the directory of an entry, built by `build(directory)` if it is absent.

        `build` gets an empty directory that is removed again if it raises.
        """
        final = self.root / name / key
        if self._touch(final):
            return final
        with self._locked(name):
            if self._touch(final):
                return final
            self._remove_leftovers(name)
            partial = self.root / name / f".partial-{key}"
            partial.mkdir(parents=True)
            try:
                build(partial)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            partial.rename(final)
            self._remove_unused(name, unused_limit_s, keep=final)
        return final

    def forget(self, name: str) -> None:
        """Remove all entries of a name, so that the next use builds anew."""
        with self._locked(name):
            for old in (self.root / name).glob("*"):
                shutil.rmtree(old, ignore_errors=True)

    def _touch(self, entry: Path) -> bool:
        try:
            os.utime(entry)
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _remove_leftovers(self, name: str) -> None:
        """Partial directories of builds that were killed. The lock is held, so no process is writing them."""
        for partial in (self.root / name).glob(".partial-*"):
            shutil.rmtree(partial, ignore_errors=True)

    def _remove_unused(self, name: str, unused_limit_s: float, *, keep: Path) -> None:
        limit = time.time() - unused_limit_s
        for old in (self.root / name).iterdir():
            if old != keep and old.stat().st_mtime < limit:
                shutil.rmtree(old, ignore_errors=True)
