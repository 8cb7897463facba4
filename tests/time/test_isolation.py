# SPDX-License-Identifier: Apache-2.0
"""What one tenant's memory may do to another: nothing."""

from tests.rig.client import Client, client
from tests.rig.figures import Record
from tests.rig.gpu import Gpu


def p99_ns(uuid: str) -> int:
    outcome = client(uuid, "latency", "--delay-us", "50", "--period-us", "1000", "--seconds", "2")
    return int(outcome.reports[-1]["p99_ns"])


def test_memory_that_stops_answering_does_not_change_the_neighbours_p99(gpu: Gpu, figures: Record) -> None:
    """Operands under userfaultfd whose faults nobody answers: only that slice's own worker waits."""
    for tenant in ("frozen", "neighbour"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    frozen, neighbour = gpu.slice("frozen"), gpu.slice("neighbour")

    alone = p99_ns(neighbour)
    freezer = Client(["--json", frozen, "freeze", "--seconds", "6"])
    freezer.line()  # its worker is stuck now
    beside = p99_ns(neighbour)
    outcome = freezer.wait()

    figures("p99 of a 50 us item beside frozen memory", beside / 1000, against=alone / 1000, unit="us alone")
    assert beside <= alone * 1.1 + 10_000
    # Exit status 0 says that nothing of the frozen slice completed meanwhile, and all of it afterwards, correctly.
    assert outcome.reports[-1]["ok"]
