# SPDX-License-Identifier: Apache-2.0
"""Progress lines on stderr: stdout belongs to the command that runs in the lab host."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STARTED = time.monotonic()


def say(message: str) -> None:
    """Print one line, with the seconds since the tool started."""
    print(f"lab: [{time.monotonic() - _STARTED:6.1f} s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Announce a build step, and how long it took when it has succeeded."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - started:.1f} s")
