# SPDX-License-Identifier: Apache-2.0
"""One measurement: load on several slices, the kernel's counters over a window, and the clients' count beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.rig.gpu import Gpu, Load


@dataclass(frozen=True, kw_only=True)
class Measured:
    """`share` and `slice_share` come from the kernel's counters; `items` and `work_share` from the completions that the
    clients saw.

    `work_share`: duration of each tenant's completed items, relative to that of all tenants.
    `saturated`: every slice had at least 8 items queued at every moment.
    """

    share: Mapping[str, float]
    slice_share: Mapping[str, float]
    items: Mapping[str, int]
    work_share: Mapping[str, float]
    saturated: bool


def measure(gpu: Gpu, load: Load, *, window_s: float) -> Measured:
    """Saturate `load` with `delay` items and measure for `window_s` seconds."""
    tenants = {uuid: gpu.slice_stats(uuid).tenant for uuid in load}
    with gpu.loaded(load) as outcomes:
        window = gpu.measured_over(window_s)
    items = dict.fromkeys(tenants.values(), 0)
    work_ns = dict.fromkeys(tenants.values(), 0)
    saturated = True
    for uuid, options in load.items():
        report = outcomes[0].report("name", uuid)
        items[tenants[uuid]] += report["items"]
        work_ns[tenants[uuid]] += report["items"] * delay_ns(options)
        saturated = saturated and (report["saturated"] or "nap_us" in options)
    total_ns = sum(work_ns.values())
    return Measured(
        share=window.share,
        slice_share=window.slice_share,
        items=items,
        work_share={tenant: ns / total_ns for tenant, ns in work_ns.items()},
        saturated=saturated,
    )


def delay_ns(options: Mapping[str, object]) -> int:
    """Engine time of one item of a load."""
    if "delay_ns" in options:
        return int(str(options["delay_ns"]))
    return int(float(str(options["delay_us"])) * 1000)
