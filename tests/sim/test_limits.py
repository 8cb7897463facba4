# SPDX-License-Identifier: Apache-2.0
"""The limits of a tenant and its slices that the scheduler gets."""

from vgpumgr.sched.core import Band, GroupParams, Mode, SliceParams
from vgpumgr.sim.limits import group_params, slice_params
from vgpumgr.sim.scenario import read

EVERYTHING = """\
duration: 1s
tenants:
  - name: a
    weight: 7
    timeslice: 3ms
    cap: 50%
    burst: 6ms
    mode: strict
    band: latency
    reservation: {budget: 2ms, period: 20ms}
    hold_max: 4ms
    inversion: {share: 3%, burst: 5us}
    slices: [{weight: 2, cap: 10%, cap_period: 10ms, burst: 1ms}, {}]
    workload: {backlog: {items: 1ms}}
  - name: b
    workload: {backlog: {items: 1ms}}
"""
MS = 1_000_000


def test_every_limit_reaches_the_scheduler_in_its_unit() -> None:
    a, b = read(EVERYTHING, "a.yaml").scenario.tenants
    assert group_params(a) == GroupParams(
        weight=7,
        timeslice_ns=3 * MS,
        cap_ns=15 * MS,
        cap_period_ns=30 * MS,
        burst_ns=6 * MS,
        mode=Mode.STRICT,
        band=Band.LATENCY,
        reserve_ns=2 * MS,
        reserve_period_ns=20 * MS,
        hold_max_ns=4 * MS,
        inversion_permille=30,
        inversion_burst_ns=5_000,
    )
    assert group_params(b) == GroupParams(weight=1, timeslice_ns=MS)
    assert slice_params(a.slices[0], a) == SliceParams(weight=2, cap_ns=MS, cap_period_ns=10 * MS, burst_ns=MS)
    assert slice_params(a.slices[1], a) == SliceParams(weight=1)
