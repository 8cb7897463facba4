# SPDX-License-Identifier: Apache-2.0
"""Closes or opens the gate of another process, which has no say in it: disables or enables its channels.

`python -m vgpumgr.gpu.gatekeeper close|open LOCK PID FD CLIENT SUBDEVICE CHANNEL...`, with handles that somebody
learnt, prints as JSON the `status` of the driver and the `took_us` of its call, or the `errno` of what the kernel
refused. LOCK is the file that supervisors lock for such calls, because two at once leave both processes stuck, or "-".
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vgpumgr.gpu import abi

LOCK = "vgpumgr-gate.lock"


def lock_path() -> Path | None:
    """Where supervisors of this user look, compute/executor/gate/channels.c; None if there is no place for it."""
    if os.geteuid() == 0:
        return Path("/run", LOCK)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, LOCK) if runtime else None


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Nobody else makes such a call meanwhile; without a path, whoever can. Raises OSError."""
    if path is None:
        yield
        return
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def main() -> int:
    action, lock, *numbers = sys.argv[1:]
    pid, fd, client, subdevice, *channels = map(int, numbers)
    said: dict[str, float]
    try:
        taken = abi.take_file(pid, fd)
        with alone(None if lock == "-" else Path(lock)):
            began = time.monotonic_ns()
            status = abi.disable_channels(
                taken, client=client, subdevice=subdevice, channels=channels, disable=action == "close"
            )
            said = {"status": status, "took_us": (time.monotonic_ns() - began) / 1000}
    except OSError as error:
        said = {"errno": error.errno or 0}
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
