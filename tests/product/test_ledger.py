# SPDX-License-Identifier: Apache-2.0
"""A tenant's bill against the module's counters: each nanosecond of engine time counts once, whichever process dies."""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tests.product import hook
from tests.product.host import Host, new_uuid
from tests.product.services import AGENT, API
from tests.rig.product import eventually

pytestmark = pytest.mark.long

TENANTS = ("payer", "neighbour")  # no other test uses these tenants, so everything in their ledger comes from this one
WORK_NS = 200_000_000
TOLD_S = 300  # hosts report every 30 to 60 s; an emulated host is slow


class Books:
    """The charged and the booked engine time of each tenant, in ns."""

    def __init__(self, host: Host) -> None:
        self._host = host
        since = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        self._hours = f"since={since:%Y-%m-%dT%H:%M:%SZ}&until={since + timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"

    def charged(self) -> Counter[str]:
        """The charged time from the module, over netlink."""
        tenants = self._host.gpu.tenants()
        return Counter({name: tenants[name].run_ns for name in TENANTS})

    def listed(self, **more: str) -> Counter[str]:
        words = "".join(f"&{name}={value}" for name, value in more.items())
        rows = self._host.api.items(f"/v1/usage/ledger?{self._hours}{words}")
        return self._summed((str(row["tenant"]), int(row["run_ns"])) for row in rows)

    def in_csv(self) -> Counter[str]:
        rows = csv.DictReader(io.StringIO(self._host.api.text(f"/v1/usage/ledger.csv?{self._hours}")))
        return self._summed((row["tenant"], int(row["run_ns"])) for row in rows)

    @staticmethod
    def _summed(rows: Iterator[tuple[str, int]]) -> Counter[str]:
        found: Counter[str] = Counter(dict.fromkeys(TENANTS, 0))
        for tenant, run_ns in rows:
            if tenant in TENANTS:
                found[tenant] += run_ns
        return found

    def wait_booked(self) -> None:
        """Wait until more is booked of each tenant than now. The booked time never exceeds the charged time."""
        before = self.listed()

        def more() -> bool:
            booked = self.listed()
            charged = self.charged()  # read later
            assert booked <= charged
            return all(booked[name] > before[name] for name in TENANTS)

        eventually(more, what="the host has told what was used", timeout_s=TOLD_S)

    def wait_charged(self) -> None:
        """Wait until each tenant has used more engine time."""
        before = self.charged()
        eventually(
            lambda: all(self.charged()[name] > before[name] + WORK_NS for name in TENANTS),
            what="both tenants work",
            timeout_s=TOLD_S,
        )


@contextmanager
def at_work(host: Host) -> Iterator[Books]:
    """Keep a slice of each tenant busy, as a VM would, while the body runs; release the slices afterwards."""
    claims = {name: (share, new_uuid()) for name, share in zip(TENANTS, (300, 200), strict=True)}
    slices: dict[str, str] = {}
    for name, (share, vm_uuid) in claims.items():
        host.api.tenant(name, share_permille=share)
        slices[name] = host.claim(name, share_permille=share, vm_uuid=vm_uuid)
    for name, slice_id in slices.items():
        assert hook.ask("prepare", slice_id, vm_uuid=claims[name][1])["ok"]
    try:
        with host.gpu.loaded({slice_id: {"op": "delay", "delay_us": 200} for slice_id in slices.values()}):
            for name, slice_id in slices.items():
                hook.ask("started", slice_id, vm_uuid=claims[name][1])
            yield Books(host)
    finally:
        for name, slice_id in slices.items():
            hook.ask("release", slice_id, vm_uuid=claims[name][1], reason="shutdown")


def test_a_bill_is_what_the_module_charged(host: Host) -> None:
    """Kill the agent after a report, and again while the API is away; the slices work all the time."""
    with at_work(host) as books:
        books.wait_booked()
        AGENT.kill()
        books.wait_charged()
        AGENT.start()
        books.wait_booked()
        API.kill()
        AGENT.kill()
        books.wait_charged()
        AGENT.start()
        books.wait_charged()
        API.start()
        books.wait_booked()
    charged = books.charged()
    assert all(charged[name] > 2 * WORK_NS for name in TENANTS)
    eventually(lambda: books.listed() == charged, what="all is booked", timeout_s=TOLD_S)
    AGENT.restart()
    assert books.charged() == charged, "nobody works any more"
    assert books.listed(granularity="hour", by="gpu") == books.in_csv() == charged
