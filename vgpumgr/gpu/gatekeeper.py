# SPDX-License-Identifier: Apache-2.0
"""Closes or opens the gate of another process without its cooperation: disables or enables its channels.

`python -m vgpumgr.gpu.gatekeeper close|open LOCK PID FD CLIENT SUBDEVICE CHANNEL...` needs handles that were learnt
before. It prints JSON: the driver's `status` and the `took_us` of the call, or the `errno` if the kernel refused. LOCK
is the file that supervisors lock for such calls, because two calls at the same time both hang. "-" means no lock.
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
    """Return the lock file of this user's supervisors (compute/executor/gate/channels.c); None without a directory."""
    if os.geteuid() == 0:
        return Path("/run", LOCK)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, LOCK) if runtime else None


@contextlib.contextmanager
def alone(path: Path | None) -> Iterator[None]:
    """Hold the lock that keeps other processes from such a call. Without a path there is no lock. Raises OSError."""
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
