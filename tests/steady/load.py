# SPDX-License-Identifier: Apache-2.0
"""Other work beside tests: cores that are busy for a while, and processes of the tests that stall."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

BUSY_S = (1.0, 20.0)
QUIET_S = (0.5, 10.0)
STALL_S = (0.1, 1.5)
PAUSE_S = (0.5, 3.0)
_SPINS = "import os, sys; os.nice(int(sys.argv[1]))\nwhile True: pass"


@contextlib.contextmanager
def load(root: int, seed: int) -> Iterator[None]:
    """While the body runs, disturb this machine and the processes below `root`, at times that the seed chooses.

    Which process stalls depends on what runs at that moment, so that a seed repeats the times and no more.
    """
    stop = threading.Event()
    chance = random.Random(seed)
    threads = [
        threading.Thread(target=_spin, args=(stop, random.Random(chance.random()))) for _ in range(os.cpu_count() or 1)
    ]
    threads.append(threading.Thread(target=_stall, args=(stop, random.Random(chance.random()), root)))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _spin(stop: threading.Event, chance: random.Random) -> None:
    while not stop.wait(chance.uniform(*QUIET_S)):
        with subprocess.Popen([sys.executable, "-c", _SPINS, str(chance.randint(0, 10))]) as program:
            stop.wait(chance.uniform(*BUSY_S))
            program.kill()


def _stall(stop: threading.Event, chance: random.Random, root: int) -> None:
    while not stop.wait(chance.uniform(*PAUSE_S)):
        found = descendants(root)
        if not found:
            continue
        victim = chance.choice(found)
        with contextlib.suppress(ProcessLookupError):
            if _is_stopped(victim):  # a test has stopped it, and a signal of ours would let it go on
                continue
            os.kill(victim, signal.SIGSTOP)
            stop.wait(chance.uniform(*STALL_S))
            os.kill(victim, signal.SIGCONT)


def descendants(root: int) -> list[int]:
    """Processes below another, in order; those that nobody traces, since a tracer sees their signals."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = dict(line.split(":\t", 1) for line in file.read_text().splitlines() if ":\t" in line)
            if fields["TracerPid"] == "0":
                parents[int(fields["Pid"])] = int(fields["PPid"])
    found = [root]
    for parent in found:
        found += sorted(pid for pid, above in parents.items() if above == parent and pid not in found)
    return found[1:]


def _is_stopped(pid: int) -> bool:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(") ")[2].startswith(("T", "t"))
