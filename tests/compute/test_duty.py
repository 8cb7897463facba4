# SPDX-License-Identifier: Apache-2.0
"""Caps of native programs whose turns the firmware gives, in virtual time, compared with the core's entitlement."""

from fractions import Fraction
from random import Random

import pytest

from tests.compute.duty_native import MS, NEVER, Gpu, Tenant
from vgpumgr.entitlement import Backlogged, entitled

SECOND = 1000 * MS


def due(gpu: Gpu, window_ns: int) -> list[float]:
    found = entitled({i: Backlogged(weight=each.weight, cap=each.cap) for i, each in enumerate(gpu.tenants)}, window_ns)
    return [float(found[i]) for i in range(len(gpu.tenants))]


@pytest.mark.parametrize("permille", [50, 300, 500, 950])
@pytest.mark.parametrize("period_ms", [20, 40, 100])
def test_a_cap_holds_on_an_idle_gpu_whatever_its_gate_takes(permille: int, period_ms: int) -> None:
    tenant = Tenant(cap=Fraction(permille, 1000))
    gpu = Gpu([tenant], period_ns=period_ms * MS)
    gpu.run(10 * SECOND)
    assert tenant.duty.obtained_ns == pytest.approx(permille * 10 * MS, abs=2 * period_ms * MS)
    # The tenant is never ahead by more than its saved credit and the time of its gate.
    assert tenant.duty.obtained_ns <= permille * 10 * MS + period_ms * MS


@pytest.mark.parametrize("seed", range(20))
def test_tenants_get_what_the_core_says_they_are_entitled_to(seed: int) -> None:
    random = Random(seed)
    tenants = [
        Tenant(
            weight=random.randint(1, 9),
            cap=Fraction(random.randint(5, 80), 100) if random.random() < 0.5 else None,
        )
        for _ in range(random.randint(2, 5))
    ]
    gpu = Gpu(tenants, period_ns=random.choice([20, 40, 100]) * MS, gate_ns=random.choice([0, MS // 2, MS]))
    gpu.run(20 * SECOND)
    for tenant, entitlement in zip(tenants, due(gpu, 20 * SECOND), strict=True):
        assert tenant.duty.obtained_ns == pytest.approx(entitlement, abs=0.01 * 20 * SECOND)


def test_a_capped_tenant_gets_its_cap_beside_a_neighbour_of_less_weight() -> None:
    blue, red = Tenant(weight=3, cap=Fraction(3, 10)), Tenant(weight=1)
    gpu = Gpu([blue, red])
    gpu.run(10 * SECOND)
    assert blue.duty.obtained_ns == pytest.approx(3 * SECOND, rel=0.01)
    assert red.duty.obtained_ns == pytest.approx(7 * SECOND, rel=0.01)


def test_nobody_is_charged_twice_and_no_nanosecond_is_lost() -> None:
    tenants = [Tenant(weight=weight) for weight in (60, 30, 10)]
    gpu = Gpu(tenants)
    for _ in range(1000):
        gpu.now_ns += 997
        gpu.settle()
    assert 997_000 - 3 <= sum(tenant.duty.obtained_ns for tenant in tenants) <= 997_000
    assert [tenant.duty.open_ns for tenant in tenants] == [997_000] * 3


def test_a_cap_that_is_cut_counts_at_once() -> None:
    tenant = Tenant()
    gpu = Gpu([tenant])
    gpu.run(SECOND)
    gpu.settle()
    tenant.cap = Fraction(1, 10)
    tenant.set_terms()
    before = tenant.duty.obtained_ns
    gpu.run(SECOND)
    # The gate closes. The tenant may have saved up at most the earnings of one period.
    assert tenant.duty.obtained_ns - before <= 100 * MS + gpu.gate_ns + 4 * MS


def test_a_debt_is_paid_before_the_gate_opens() -> None:
    tenant = Tenant(cap=Fraction(1, 10))
    gpu = Gpu([tenant], gate_ns=100 * MS)
    gpu.run(20 * SECOND)
    assert tenant.duty.obtained_ns <= 2 * SECOND + 110 * MS


def test_an_idle_tenant_saves_up_a_burst_and_no_more() -> None:
    tenant = Tenant(cap=Fraction(1, 10), works=False, burst_ns=30 * MS)
    gpu = Gpu([tenant])
    assert gpu.now_ns == 0
    assert gpu.next_ns() == NEVER
    gpu.now_ns = 5 * SECOND
    gpu.settle()
    tenant.duty.works = True
    before = tenant.duty.obtained_ns
    gpu.run(400 * MS)
    assert tenant.duty.obtained_ns - before <= (40 + 30) * MS + gpu.gate_ns


@pytest.mark.parametrize("works", [True, False])
def test_years_without_a_look_are_settled_at_once(works: bool) -> None:
    neighbour = Tenant(weight=3, works=works)
    capped = Tenant(cap=Fraction(1, 10), works=False)
    gpu = Gpu([neighbour, capped])
    assert gpu.next_ns() == NEVER
    gpu.now_ns = 100 * 365 * 86400 * SECOND + 7 * MS
    gpu.settle()
    assert neighbour.duty.obtained_ns == (gpu.now_ns if works else 0)
    assert capped.duty.credit_ns == 4 * MS
    # The periods keep their original phase.
    assert gpu.duties.now_ns == gpu.now_ns
    assert gpu.now_ns < gpu.duties.refill_ns <= gpu.now_ns + gpu.period_ns
    assert gpu.duties.refill_ns % gpu.period_ns == 0


def test_timeslices_are_by_weight_and_a_round_is_short() -> None:
    tenants = [Tenant(weight=weight) for weight in (60, 30, 10)]
    gpu = Gpu(tenants)
    assert [gpu.timeslice_us(tenant) for tenant in tenants] == [30000, 15000, 5000]
    heavy = Gpu([Tenant(weight=1000), Tenant(weight=1)])
    assert [heavy.timeslice_us(tenant) for tenant in heavy.tenants] == [99900, 500]


def test_who_does_not_work_has_no_timeslice() -> None:
    tenants = [Tenant(weight=3), Tenant(weight=1), Tenant(weight=1, works=False)]
    gpu = Gpu(tenants)
    assert [gpu.timeslice_us(tenant) for tenant in tenants] == [15000, 5000, 0]
