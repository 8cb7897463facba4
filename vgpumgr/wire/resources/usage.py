# SPDX-License-Identifier: Apache-2.0
"""Counters of tenants' groups, as hosts report them."""

from vgpumgr.wire.common import Answer, Instant, Name, PciAddress


class Usage(Answer):
    """Counters of a tenant's group on one GPU, as its host last reported them, and the group's parameters.

    The counters restart when the group is configured again; `wall_ns` and `idle_ns` are the GPU's. A cap of 0 means no
    cap.
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
