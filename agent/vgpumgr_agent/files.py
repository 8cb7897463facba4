# SPDX-License-Identifier: Apache-2.0
"""Writing files that survive a crash: whoever reads finds the old content or the new, never a part."""

import contextlib
import os
from pathlib import Path


def write_durably(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file; it is on disk when this returns. OSError.

    The sequence is the one of rename(2) and fsync(2): write aside, sync, rename, sync the directory.
    """
    aside = path.with_name(f".{path.name}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_directory(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file, if it is there. OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Put a directory's entries on disk. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
