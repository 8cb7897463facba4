# SPDX-License-Identifier: Apache-2.0
"""How often the module's code runs: its threads, whoever wakes them, and its timers and work, which run in other
threads."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.rig.failing import text_of
from tests.rig.trace import TRACING, mounted

# The names of engine threads and slice workers; no thread of a program has such a name.
_THREADS = 'comm ~ "vgpu*" && comm != "vgpu-client"'
_WOKEN = re.compile(r": sched_waking: comm=.* pid=(\d+) ")
_CALLS = ("timer/timer_expire_entry", "timer/hrtimer_expire_entry", "workqueue/workqueue_execute_start")


@contextmanager
def _on(event: str, only: str) -> Iterator[None]:
    """Trace the occurrences of an event that pass the filter."""
    place = TRACING / "events" / event
    (place / "filter").write_text(only)
    (place / "enable").write_text("1")
    try:
        yield
    finally:
        (place / "enable").write_text("0")
        (place / "filter").write_text("0")


@contextmanager
def wakeups() -> Iterator[list[str]]:
    """Lines of the trace, one for each wakeup of one of our threads, expiry of one of our timers, or work of ours that
    a kernel thread did, while the body ran; filled at its end.
    """
    mounted()
    start, end = text_of("vgpumgr")
    events = {"sched/sched_waking": _THREADS} | dict.fromkeys(_CALLS, f"function >= {start:#x} && function < {end:#x}")
    (TRACING / "trace").write_text("")
    found: list[str] = []
    with ExitStack() as stack:
        for event, only in events.items():
            stack.enter_context(_on(event, only))
        yield found
    lines = (TRACING / "trace").read_text().splitlines()
    found += [line for line in lines if not line.startswith("#")]


@contextmanager
def woken_by(thread: int) -> Iterator[list[int]]:
    """Ids of the threads that this thread woke while the body ran, one entry for each wakeup; filled at its end.

    Threads woken by an interrupt at that time are included.
    """
    mounted()
    (TRACING / "trace").write_text("")
    found: list[int] = []
    with _on("sched/sched_waking", f"common_pid == {thread}"):
        yield found
    found += map(int, _WOKEN.findall((TRACING / "trace").read_text()))
