# SPDX-License-Identifier: Apache-2.0
"""How often a guest leaves its processor for a slice: each access to the function that traps to the module."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.rig.kernel import lacking
from tests.rig.trace import TRACING, mounted

_GROUP = "vgpu_traps"


@dataclass
class Traps:
    """The number of accesses to configuration space and to BAR0, over all slices; a doorbell counts as a write."""

    reads: int = 0
    writes: int = 0


@contextmanager
def trapped() -> Iterator[Traps]:
    """Count while the body runs; filled at its end."""
    mounted()
    probes = TRACING / "kprobe_events"
    if not probes.exists():
        lacking("CONFIG_KPROBE_EVENTS")
    probes.write_text("".join(f"p:{_GROUP}/{name} vgpumgr:vgpu_access_{name}\n" for name in ("read", "write")))
    switch = TRACING / "events" / _GROUP / "enable"
    found = Traps()
    try:
        switch.write_text("1")
        yield found
    finally:
        switch.write_text("0")
        lines = [line.split() for line in (TRACING / "kprobe_profile").read_text().splitlines()]
        probes.write_text("")
    hits = {name: (int(hit), int(missed)) for name, hit, missed in lines}
    assert not any(missed for _, missed in hits.values())
    found.reads, found.writes = hits["read"][0], hits["write"][0]
