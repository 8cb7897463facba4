# SPDX-License-Identifier: Apache-2.0
"""How often the module's code runs: its threads, whoever wakes them; timers and work, which need no thread of ours."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.rig.failing import text_of
from tests.rig.trace import TRACING, mounted

# Engines and workers of slices, by the names of their threads; none of the programs.
_THREADS = 'comm ~ "vgpu*" && comm != "vgpu-client"'
_WOKEN = re.compile(r": sched_waking: comm=.* pid=(\d+) ")
_CALLS = ("timer/timer_expire_entry", "timer/hrtimer_expire_entry", "workqueue/workqueue_execute_start")


@contextmanager
def _on(event: str, only: str) -> Iterator[None]:
    """Trace those of an event that the filter lets through."""
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
    """Lines of the trace, one for each time that a thread of ours was woken, that a timer of ours expired, or that a
    kernel thread did work of ours, while the body ran; filled at its end.
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
    """Ids of the threads that this one woke while the body ran, each as often as it did; filled at its end.

    Who is woken by an interrupt at that time is among them.
    """
    mounted()
    (TRACING / "trace").write_text("")
    found: list[int] = []
    with _on("sched/sched_waking", f"common_pid == {thread}"):
        yield found
    found += map(int, _WOKEN.findall((TRACING / "trace").read_text()))
