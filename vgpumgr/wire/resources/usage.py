# SPDX-License-Identifier: Apache-2.0
"""Counters of tenants' groups, as hosts report them."""

from vgpumgr.wire.common import Answer, Instant, Name, PciAddress


class Usage(Answer):
    """Counters of a tenant's group on one GPU, as its host last reported them, and what it was entitled by.

    They start anew when the group is configured again; `wall_ns` and `idle_ns` are the GPU's. Caps 0: none.
    """

    host: Name
    gpu: PciAddress
    tenant: Name
    weight: int
    timeslice_us: int
    cap_us: int
    cap_period_us: int
    run_ns: int
    runs: int
    longest_run_ns: int
    throttled_ns: int
    switches: int
    wall_ns: int
    idle_ns: int
    reported_at: Instant
