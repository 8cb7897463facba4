# SPDX-License-Identifier: Apache-2.0
"""Writes the `newc` archives that Linux unpacks as initial RAM disk.

Format: Documentation/driver-api/early-userspace/buffer-format.rst. The kernel unpacks archives that follow
each other in one file, which lets a boot combine parts that were made at different times.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_ALIGNMENT = 4


class Archive:
    """One archive, written to `stream` in the order of the calls; parents are created as needed."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._inode = 0
        self._directories: set[str] = set()

    def add_data(self, name: str, data: bytes, *, mode: int = 0o644) -> None:
        """Add a regular file."""
        self._add_parents(name)
        self._entry(name, stat.S_IFREG | mode, data)

    def add_file(self, name: str, source: Path) -> None:
        """Add a copy of a file, executable if the source is."""
        self.add_data(name, source.read_bytes(), mode=0o755 if os.access(source, os.X_OK) else 0o644)

    def add_tree(self, name: str, source: Path) -> None:
        """Add the regular files of a directory below `name`, which is empty for the root directory."""
        for file in sorted(source.rglob("*")):
            if file.is_file():
                self.add_file(str(Path(name) / file.relative_to(source)), file)

    def add_symlink(self, name: str, target: str) -> None:
        """Add a symbolic link."""
        self._add_parents(name)
        self._entry(name, stat.S_IFLNK | 0o777, target.encode())

    def add_directory(self, name: str) -> None:
        """Add a directory and those above it."""
        self._add_parents(f"{name}/.")

    def close(self) -> None:
        """Write the end mark; the stream stays open and is aligned for a following archive."""
        self._entry("TRAILER!!!", 0, b"")

    def _add_parents(self, name: str) -> None:
        parts = name.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            directory = "/".join(parts[:depth])
            if directory not in self._directories:
                self._directories.add(directory)
                self._entry(directory, stat.S_IFDIR | 0o755, b"")

    def _entry(self, name: str, mode: int, data: bytes) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        # ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        fields = (self._inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._write_aligned(header + encoded)
        self._write_aligned(data)

    def _write_aligned(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.write(b"\0" * (-len(data) % _ALIGNMENT))
