# SPDX-License-Identifier: Apache-2.0
"""How often threads of the module are woken, whoever wakes them: a timer, a doorbell, another thread."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.rig.trace import TRACING

# Engines and workers of slices, by the names of their threads; none of the programs.
_OURS = 'comm ~ "vgpu*" && comm != "vgpu-client"'


@contextmanager
def wakeups() -> Iterator[list[str]]:
    """Lines of the trace, one for each time a thread of ours was woken while the body ran; filled at its end."""
    if not (TRACING / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(TRACING)], check=True)
    event = TRACING / "events/sched/sched_waking"
    (event / "filter").write_text(_OURS)
    (TRACING / "trace").write_text("")
    (event / "enable").write_text("1")
    found: list[str] = []
    try:
        yield found
    finally:
        (event / "enable").write_text("0")
        text = (TRACING / "trace").read_text()
        (event / "filter").write_text("0")
    found += [line for line in text.splitlines() if "sched_waking:" in line]
