# SPDX-License-Identifier: Apache-2.0
"""The share follows the quota, through the whole product, measured in virtual time (`lab run --icount`)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.product import hook
from tests.product.host import Host, new_uuid
from tests.rig.client import Client, slice_option
from tests.rig.figures import Record
from tests.rig.trace import Run, traced_runs

POINT = 0.01  # of the engine time
SETTLE_S = 0.1
WINDOW_S = 2.5
LOAD_S = 120
TIMESLICES_US = {"blue": 2000, "green": 1000}


@contextmanager
def saturated(host: Host, *slices: str) -> Iterator[Client]:
    """Drive slices from one process while the body runs."""
    words = ["--json", "--seconds", str(LOAD_S)]
    for slice_id in slices:
        words += ["--slice", slice_option(slice_id, op="delay", delay_us=500)]
    client = Client(words)
    try:
        for slice_id in slices:
            host.gpu.wait_queued(slice_id)
        yield client
    finally:
        client.kill()


def share(runs: list[Run], tenant: str, *, since_ns: int, until_ns: int) -> float:
    """The shares of the engine time used between two instants; runs are cut at each instant."""
    used = dict.fromkeys({run.tenant for run in runs}, 0)
    for run in runs:
        used[run.tenant] += max(0, min(run.charged_until_ns, until_ns) - max(run.start_ns, since_ns))
    return used[tenant] / sum(used.values())


def test_the_share_follows_a_quota_change_without_restarting_anything(host: Host, figures: Record) -> None:
    """Start with 750 and 250 permille, then cut blue's quota to 250: the share stays until the kernel knows, then
    follows at once."""
    host.api.tenant("blue", share_permille=750, timeslice_us=TIMESLICES_US["blue"])
    host.api.tenant("green", share_permille=250, timeslice_us=TIMESLICES_US["green"])
    vms = {"blue": new_uuid(), "green": new_uuid()}
    blue = host.claim("blue", share_permille=750, vm_uuid=vms["blue"])
    green = host.claim("green", share_permille=250, vm_uuid=vms["green"])
    for slice_id, tenant in ((blue, "blue"), (green, "green")):
        assert hook.ask("prepare", slice_id, vm_uuid=vms[tenant])["ok"]

    with saturated(host, blue, green) as client:
        first = {slice_id: host.gpu.slice_stats(slice_id) for slice_id in (blue, green)}
        with traced_runs() as runs:
            begun_ns = time.monotonic_ns()
            time.sleep(WINDOW_S)
            asked_ns = time.monotonic_ns()
            host.api.quota("blue", share_permille=250, timeslice_us=1000)
            old_ns = looked_ns = asked_ns
            while (now := host.gpu.stats("blue")).weight == 750:
                old_ns, looked_ns = looked_ns, time.monotonic_ns()
            changed_ns = time.monotonic_ns()
            time.sleep(WINDOW_S)
            ended_ns = time.monotonic_ns()
        assert client.process.poll() is None
        last = {slice_id: host.gpu.slice_stats(slice_id) for slice_id in (blue, green)}

    assert (now.weight, now.timeslice_us) == (250, 1000)
    settled_ns = changed_ns + int(SETTLE_S * 1e9)
    before = share(runs, "blue", since_ns=begun_ns, until_ns=asked_ns)
    meanwhile = share(runs, "blue", since_ns=asked_ns, until_ns=old_ns)
    after = share(runs, "blue", since_ns=settled_ns, until_ns=ended_ns)
    longest_us = max(run.length_ns for run in runs if run.tenant == "blue" and run.start_ns > settled_ns) / 1000
    figures("share of blue at 750 and 250 permille", before, against=0.75, unit="of the engine")
    figures("share of blue until the kernel knows of the cut", meanwhile, against=0.75, unit="of the engine")
    figures("share of blue when its quota was cut to 250", after, against=0.5, unit="of the engine")
    figures("from the request to the new weight", (changed_ns - asked_ns) / 1e9, against=0, unit="s, in virtual time")
    figures("longest run of blue after the cut", longest_us, against=1000, unit="us, its new timeslice")
    assert before == pytest.approx(0.75, abs=POINT)
    assert old_ns > asked_ns
    assert meanwhile == pytest.approx(0.75, abs=POINT)
    assert after == pytest.approx(0.5, abs=POINT)
    for slice_id in (blue, green):
        assert last[slice_id].run_ns > first[slice_id].run_ns
        assert (last[slice_id].resets, last[slice_id].errors) == (first[slice_id].resets, first[slice_id].errors)
    for slice_id, tenant in ((blue, "blue"), (green, "green")):
        assert hook.ask("release", slice_id, vm_uuid=vms[tenant])["ok"]
