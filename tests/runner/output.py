# SPDX-License-Identifier: Apache-2.0
"""Destinations of commands' output."""

import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO


class Output:
    """Copies bytes to a log and to standard output; safe to use from several threads.

    On standard output, lines begin with `label` if there is one, and only whole lines are written: lanes that run side
    by side share standard output and `lock`.
    """

    def __init__(self, log: Path, lock: threading.Lock, *, label: str = "") -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.path = log
        self._log = log.open("wb")
        self._lock = lock
        self._label = f"{label} | ".encode() if label else b""
        self._open_line = b""

    def write(self, data: bytes) -> None:
        """Writes nothing after `close`: a process that outlived its command may still hold the pipe."""
        with self._lock:
            if self._log.closed:
                return
            self._log.write(data)
            self._log.flush()
            *lines, self._open_line = (self._open_line + data).split(b"\n")
            if self._label:
                data = b"".join(self._label + line + b"\n" for line in lines)
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def say(self, line: str) -> None:
        """Writes a separate line."""
        self.write((b"\n" if self._open_line else b"") + f"{line}\n".encode())

    def copy(self, pipe: BinaryIO) -> None:
        """Copies until end of file; in small pieces, so that a progress line is visible while it grows."""
        with pipe:
            while data := os.read(pipe.fileno(), 65536):
                self.write(data)

    def read(self) -> str:
        """Returns everything that was written."""
        return self.path.read_text(errors="replace")

    def close(self) -> None:
        with self._lock:
            self._log.close()
