# SPDX-License-Identifier: Apache-2.0
"""Children write and send random data at any time. One tenant has the lease, and honest tenants get their share."""

from __future__ import annotations

import random

import pytest

from tests.compute.arbiter_native import ffi, lib
from tests.compute.arbiter_rig import MS, NEVER, SECOND, US, Child, Rig, Tenant, backlog

EDGES = (0, 1, 2**32, 2**62, 2**63 - 1, 2**63, NEVER - 1, NEVER)


class Liar(Child):
    """A child that writes and sends random values and computes nothing."""

    def __init__(self, rig: Rig, tenant: Tenant, numbers: random.Random) -> None:
        super().__init__(rig, tenant, ())
        self.numbers = numbers

    def value(self) -> int:
        kind = self.numbers.randrange(4)
        if kind == 0:
            return self.numbers.choice(EDGES)
        if kind == 1:
            return max(0, self.rig.now + self.numbers.randrange(-5 * MS, 5 * MS))
        if kind == 2:
            return (int(self.tenant.c.lease.number) << 1 | self.numbers.randrange(2)) & NEVER
        return self.numbers.getrandbits(64)

    def run(self) -> None:
        if self not in self.tenant.children:
            return
        numbers = self.numbers
        for field in ("state", "dry_since_ns", "idle_ns"):
            if numbers.random() < 0.6:
                setattr(self.pages, field, self.value())
        if numbers.random() < 0.7:
            self.send()
        self.rig.at(self.rig.now + numbers.choice((1, US, 50 * US, 700 * US, 9 * MS)), self.run)

    def send(self) -> None:
        request = ffi.new("struct vgpu_stream_request *")
        numbers = self.numbers
        request.op = numbers.choice((1, 1, 2, 2, 2, 3, numbers.getrandbits(32)))
        request.flags = numbers.choice((0, 0, 1, 2, 3, 4, 7, 8, numbers.getrandbits(32)))
        request.lease = numbers.choice((int(self.tenant.c.lease.number), self.value()))
        request.kernel_id = numbers.choice((0, 1, numbers.getrandbits(32)))
        request.hint_ns = self.value()
        request.reserved = numbers.choice((0, 0, 0, 1))
        lib.vgpu_arbiter_request(self.rig.c, self.c, request, self.rig.now)


def lie(rig: Rig, tenant: Tenant, numbers: random.Random) -> Liar:
    liar = Liar(rig, tenant, numbers)
    rig.streams[liar.c] = liar
    tenant.children.append(liar)
    lib.vgpu_arbiter_stream_add(rig.c, tenant.c, liar.c, False, rig.now)
    rig.at(rig.now, liar.run)
    return liar


def check_one_lease(rig: Rig) -> None:
    held = [tenant.name for tenant in rig.tenants.values() if tenant.page.lease & 3]
    assert len(held) <= 1, held
    assert (rig.holder is not None) == bool(held)


def play(seed: int, steps: int) -> None:
    numbers = random.Random(seed)
    watch = {
        "processors": 2,
        "allowance_permille": 500,
        "burst_ns": SECOND,
        "every_ns": 50 * MS,
        "penalty_ns": 100 * MS,
    }
    rig = Rig(max_chunk_ns=2 * MS, grace_ns=1 * MS, watch=watch if seed % 2 else {})
    honest = rig.tenant("honest", weight=2)
    child = rig.child(honest, backlog(numbers.choice((50 * US, 400 * US, 900 * US))))
    liars = [rig.tenant(f"liar{n}") for n in range(2)]
    kinds = (
        {},
        {"cap_ns": 20 * MS, "cap_period_ns": 100 * MS},
        {"band": 1, "reserve_ns": 1 * MS, "reserve_period_ns": 20 * MS, "hold_max_ns": 2 * MS},
    )
    for tenant in liars:
        assert rig.update(tenant, **numbers.choice(kinds)) == lib.VGPU_FIELD_NONE
        lie(rig, tenant, numbers)
    for _ in range(steps):
        rig.run_until(rig.now + numbers.randrange(1, 4 * MS))
        check_one_lease(rig)
        tenant = numbers.choice(liars)
        if numbers.random() < 0.05 and tenant.children:
            rig.remove(numbers.choice(tenant.children))
        elif numbers.random() < 0.1 and len(tenant.children) < 4:
            lie(rig, tenant, numbers)
        elif numbers.random() < 0.05:
            rig.update(tenant, **numbers.choice(kinds))
        elif numbers.random() < 0.05:
            rig.leave(tenant)
            rig.run_until(rig.now + numbers.randrange(4 * MS))
            check_one_lease(rig)
            rig.come_back(tenant)
    # The honest tenant is entitled to half and always has work. The others may reserve a tenth.
    bound = 5 * MS + rig.max_chunk_ns + 4 * (1 * MS + rig.max_chunk_ns)
    assert honest.charged_ns >= rig.now // 2 - bound, seed
    # While all others lie, the honest tenant still gets what it pays for, except for hand-overs and its own gate.
    assert child.done_ns >= honest.charged_ns * 8 // 10, seed
    for tenant in liars:
        for one in list(tenant.children):
            rig.remove(one)
    rig.run_until(rig.now + 100 * MS)
    assert rig.holder is honest
    assert honest.page.expires_ns == NEVER


@pytest.mark.parametrize("seed", range(6))
def test_liars_get_no_more_than_their_share_and_the_honest_theirs(seed: int) -> None:
    play(seed, 200)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_liars_get_no_more_than_their_share(seed: int) -> None:
    play(seed, 1000)
