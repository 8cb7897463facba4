# SPDX-License-Identifier: Apache-2.0
"""Attacks of a hostile tenant, which gains nothing and costs nobody anything.

Each attack runs against backlogged neighbours for some time. In the end the attacker has at most 1 % more than it is
due, and each neighbour at most 1 % less. A neighbour with a reservation waits for one chunk at most, as it does without
the attack. Deadlines cannot be forged: an item has none, because they come from the reservation that the provider gave.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sched.host import Device, Host
from tests.sched.story import MS, SECOND, US, Latency, SliceOf, Story, Tenant, Work
from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.sched.core import Decision, ItemInfo, SchedParams

ENGINE = SchedParams(max_chunk_ns=400 * US, min_chunk_ns=20 * US, reserve_limit_permille=750)
HONEST = Tenant(slices=(SliceOf(work=Work(items=(390 * US,))),))
# The attacker is due a quarter beside three honest tenants; it can reserve at most this much of it.
RESERVED = Latency(reserve_ns=MS, period_ns=4 * MS)
HOLDING = replace(RESERVED, hold_max_ns=2 * MS)


class Watched(Host):
    """Records how long each slice waits from waking to executing."""

    waits: dict[str, list[int]]

    def wake(self, device: Device) -> None:
        super().wake(device)
        self.woken[device.core.name] = self.now

    def execute(self, device: Device, decision: Decision) -> None:
        woken = self.woken.pop(device.core.name, None)
        if woken is not None:
            self.waits.setdefault(device.tenant.name, []).append(self.now - woken)
        super().execute(device, decision)

    def __init__(self, story: Story) -> None:
        self.woken: dict[str, int] = {}
        self.waits = {}
        super().__init__(story, with_model=False)


def tenant(*works: Work, latency: Latency | None = None) -> Tenant:
    return Tenant(latency=latency, slices=tuple(SliceOf(work=work) for work in works))


def attack(attacker: Tenant, *others: Tenant, engine: SchedParams = ENGINE, ns: int = 2 * SECOND) -> Watched:
    """The attacker is tenant 0, followed by honest ones."""
    neighbours = others or (HONEST,) * 3
    host = Watched(Story(engine=engine, tenants=(attacker, *neighbours), duration_ns=ns))
    assert len(host.tenants) == 1 + len(neighbours), "somebody was not admitted"
    host.run()
    return host


def check_nothing_gained(host: Host) -> None:
    due = entitled({t.name: Backlogged(weight=t.params.weight) for t in host.tenants}, host.now)
    attacker, *neighbours = host.tenants
    assert attacker.core.run_ns <= 1.01 * due[attacker.name]
    for neighbour in neighbours:
        assert neighbour.core.run_ns >= 0.99 * due[neighbour.name]


# ---- share


@pytest.mark.parametrize("nap_ns", [1, 10 * US, 300 * US])
def test_overrunning_and_napping(nap_ns: int) -> None:
    """With 8 ms items and 10 us naps, a symmetric clamp of debt gave 57 % instead of a quarter."""
    napper = tenant(Work(items=(8 * MS,), nap_every=1, nap_ns=nap_ns))
    host = attack(napper, engine=replace(ENGINE, max_chunk_ns=8 * MS), ns=5 * SECOND)
    # R10's bound: a timeslice and a chunk.
    assert host.tenants[0].core.run_ns <= host.now / 4 + 9 * MS


SHARES = {
    "kernels split into the smallest": tenant(Work(items=(20 * US,))),
    "kernels split into odd bits": tenant(Work(items=(29_999, 20_001, 50_037))),
    "many slices": tenant(*[Work(items=(390 * US,))] * 40),
    "many slices that take turns in napping": tenant(
        *[Work(items=(390 * US,), nap_every=1, nap_ns=nap * US) for nap in range(1, 21)]
    ),
    "napping at the end of each timeslice": tenant(Work(items=(330 * US,), nap_every=3, nap_ns=1)),
    "false hints": tenant(Work(items=(400 * US,), request=1, hint_ns=1)),
    "more always follows": tenant(Work(items=(400 * US,), request=10**9)),
    "more always follows, and never at once": tenant(
        Work(items=(400 * US,), request=10**9, nap_every=1, nap_ns=100 * US)
    ),
    "all of the share reserved": tenant(Work(items=(400 * US,)), latency=RESERVED),
    "reserved, and waking just after each deadline": tenant(
        Work(items=(400 * US,), nap_every=3, nap_ns=2801 * US), latency=RESERVED
    ),
    "reserved, and short naps to get a fresh budget": tenant(
        Work(items=(390 * US,), nap_every=1, nap_ns=10 * US), latency=RESERVED
    ),
    "many slices that wake for a fresh budget": tenant(
        *[Work(items=(400 * US,), nap_every=1, nap_ns=nap * 100 * US) for nap in range(1, 9)], latency=RESERVED
    ),
    "holding for items that never come": tenant(
        Work(items=(50 * US,), request=10**9, nap_every=1, nap_ns=3 * MS), latency=HOLDING
    ),
    "holding with many slices": tenant(
        *[Work(items=(50 * US,), request=10**9, nap_every=1, nap_ns=nap * 100 * US) for nap in range(20, 28)],
        latency=HOLDING,
    ),
}


@pytest.mark.parametrize("name", SHARES)
def test_the_share_is_what_was_granted(name: str) -> None:
    host = attack(SHARES[name])
    check_nothing_gained(host)
    stats = host.tenants[0].core.stats
    if SHARES[name].latency is None:
        assert (stats.holds, stats.latency_ns) == (0, 0), "whatever it says"


def check_reserve(host: Host) -> None:
    """Invariant 12: use in band L over a window from the start."""
    params, used = host.tenants[0].params, host.tenants[0].core.stats.latency_ns
    rate = params.reserve_ns / params.reserve_period_ns
    assert used <= rate * host.now + 2 * params.reserve_ns + ENGINE.max_chunk_ns


@pytest.mark.parametrize("nap_us", [1, 10, 100, 390, 610, 1500, 2990, 3001])
def test_sleeping_and_waking_earns_no_budget(nap_us: int) -> None:
    """Half of the share is reserved, so all further use must come from the fair band."""
    reserved = replace(RESERVED, reserve_ns=500 * US)
    work = Work(items=(390 * US,), nap_every=1, nap_ns=nap_us * US)
    host = attack(tenant(work, work, latency=reserved))
    check_reserve(host)
    check_nothing_gained(host)


# ---- ringing


@pytest.mark.parametrize("latency", [None, replace(RESERVED, reserve_ns=500 * US)])
def test_a_deeper_queue_and_more_rings_change_nothing(latency: Latency | None) -> None:
    """Only the first item of a queue counts, however often it is announced."""

    def transcript(rings: int) -> list[object]:
        story = Story(
            engine=ENGINE,
            tenants=(tenant(Work(items=(90 * US,)), latency=latency), HONEST, HONEST),
            duration_ns=SECOND // 4,
        )

        def ring(host: Host) -> None:
            for _ in range(rings):
                for device in host.tenants[0].devices:
                    host.core.wake(device.core, host.clock())

        return Host(story, with_model=False, probe=ring, at_pick=ring).run().transcript

    assert transcript(3) == transcript(0)


# ---- the waits of others

QUICK = Tenant(
    weight=2,
    latency=Latency(reserve_ns=200 * US, period_ns=4 * MS),
    slices=(SliceOf(work=Work(items=(50 * US,), nap_every=1, nap_ns=1100 * US)),),
)


@pytest.mark.parametrize(
    "name",
    [
        "more always follows, and never at once",
        "reserved, and short naps to get a fresh budget",
        "holding for items that never come",
        "holding with many slices",
        "many slices that wake for a fresh budget",
    ],
)
def test_who_has_a_reservation_waits_for_one_chunk_at_most(name: str) -> None:
    attacker = SHARES[name]
    if attacker.latency is not None:
        attacker = replace(attacker, latency=replace(attacker.latency, reserve_ns=700 * US))
    host = attack(attacker, QUICK, HONEST, HONEST)
    waits = host.waits[host.tenants[1].name]
    assert len(waits) > 1000
    # The attacker's deadline may be the earlier one; then its reservation goes first.
    reserve_ns = attacker.latency.reserve_ns if attacker.latency else 0
    assert max(waits) <= ENGINE.max_chunk_ns + reserve_ns
    assert sum(waits) / len(waits) <= ENGINE.max_chunk_ns


# ---- predictions

HOLDER = Tenant(
    weight=3,
    latency=Latency(
        reserve_ns=2 * MS, period_ns=4 * MS, hold_max_ns=MS, inversion_permille=10, inversion_burst_ns=100 * US
    ),
    slices=(SliceOf(work=Work(items=(50 * US, 60 * US), nap_every=1, nap_ns=300 * US, request=40)),),
)
FILLER = tenant(Work(items=(100 * US, 110 * US), request=1))


def poisoner(*items: int) -> Tenant:
    """It uses the kernel ids of its neighbours, 0 and 1, and announces them as short."""
    return tenant(Work(items=items, request=1, hint_ns=1))


@pytest.mark.parametrize("items", [(400 * US,), (20 * US,), (20 * US,) * 9 + (400 * US,) * 3])
def test_nobody_poisons_what_is_predicted_of_a_neighbour(items: tuple[int, ...]) -> None:
    host = attack(poisoner(*items), HOLDER, FILLER, ns=SECOND)
    predicted = [
        host.core.predicted_ns(host.tenants[who].core, ItemInfo(kernel_id=kernel_id))
        for who in (1, 2)
        for kernel_id in (0, 1)
    ]
    alone = attack(tenant(Work(items=(390 * US,))), HOLDER, FILLER, ns=SECOND)
    assert predicted == [
        alone.core.predicted_ns(alone.tenants[who].core, ItemInfo(kernel_id=kernel_id))
        for who in (1, 2)
        for kernel_id in (0, 1)
    ]
    stats = host.tenants[1].core.stats
    assert stats.fills > 100
    assert stats.inversion_ns <= host.now / 100 + 100 * US + ENGINE.max_chunk_ns


def with_burst(burst_ns: int) -> Tenant:
    assert HOLDER.latency is not None
    return replace(HOLDER, latency=replace(HOLDER.latency, inversion_burst_ns=burst_ns))


@pytest.mark.parametrize("items", [(400 * US,), (20 * US,) * 1500 + (400 * US,) * 50])
def test_filling_every_gap_costs_the_holder_its_budget_at_most(items: tuple[int, ...]) -> None:
    """Pieces longer than the gap, after many short ones that have taught the predictor that all are short."""
    work = Work(items=items, request=1)
    one_kernel = replace(HONEST, slices=(SliceOf(work=replace(work, kernels=1)),))
    stats = attack(one_kernel, with_burst(200 * US)).tenants[1].core.stats
    assert stats.inversion_ns > 0
    assert stats.inversion_ns <= 2 * SECOND // 100 + 200 * US + ENGINE.max_chunk_ns


def test_hints_do_not_open_the_gate() -> None:
    """Each kernel is new, so that only its hint is known. The hint is a nanosecond, but the kernel fills the gap."""
    host = attack(tenant(Work(items=(400 * US,) * 2000, request=1, hint_ns=1)), with_burst(20 * US))
    stats = host.tenants[1].core.stats
    assert (stats.fills, stats.inversion_ns) == (0, 0)
    assert stats.holds > 100
