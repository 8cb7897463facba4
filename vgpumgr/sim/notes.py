# SPDX-License-Identifier: Apache-2.0
"""Facts that a reader of a simulation's figures needs, and problems of its scenario that no scheduler can solve."""

from collections.abc import Iterator

from vgpumgr.sim import schema
from vgpumgr.sim.quantity import format_percent, format_time
from vgpumgr.sim.report import Report, label, shown_value

OVERLOAD = 1.05
"""A tenant is overloaded if it asks for more than this times its due and leaves requests undone."""

P99_REQUESTS = 100
"""With fewer requests, the p99 is close to the slowest request."""


def notes(found: Report) -> list[str]:
    """Return the facts that a reader of the figures needs."""
    scenario, engine = found.scenario, found.scenario.engine
    costs = [
        f"{words} {format_time(time_ns)}"
        for words, time_ns in (
            ("switch", engine.switch_cost),
            ("split", engine.split_cost),
            ("preemption", engine.preempt_latency),
        )
        if time_ns
    ]
    policy = f", policy {scenario.scheduler.policy}" if scenario.scheduler.name in schema.CORE_SCHEDULERS else ""
    seeds = f"seeds {found.seeds[0]} to {found.seeds[-1]}" if len(found.seeds) > 1 else f"seed {found.seeds[0]}"
    measured = format_time(scenario.duration - scenario.warm_up)
    warm_up = f"after {format_time(scenario.warm_up)} of warm-up" if scenario.warm_up else "no warm-up"
    said = [
        f"simulated engine, {engine.kind.replace('_', '-')}, pieces of at most {format_time(engine.max_chunk)}, costs: "
        + (", ".join(costs) or "none"),
        f"scheduler {scenario.scheduler.name}{policy}; schedule {found.hashes[0]}",
        f"{seeds}; {measured} each, {warm_up}",
        ", ".join(f"{_words(key)} {shown_value(key, figure.mean)}" for key, figure in found.engine.items()),
    ]
    if any(not tenant.exact for tenant in found.tenants):
        said.append(
            "~ requests count from their arrival until an ideal engine is done; pauses of the host are not modelled"
        )
    if scenario.scheduler.policy != "best_effort":
        said.append("while a place idles, its tenant is charged, and the engine does not count as idle")
    if len(found.seeds) == 1:
        said.append("one seed: no intervals; use 5 or more seeds to compare")
    elif len(set(found.hashes)) == 1:
        said.append("every seed gave the same schedule, so more seeds show nothing new")
    else:
        said.append("tables show the mean over the seeds; targets are judged by the worst seed")
    return said + [line for _, line in overloads(found)] + list(_few_requests(found))


def overloads(found: Report) -> Iterator[tuple[str, str]]:
    """Yield each tenant that asks for more than its due, with a line that says so. No timeslice can change this."""
    for tenant in found.tenants:
        offered, due = tenant.figures.get("offered_share"), tenant.figures["entitled_share"]
        each = " each" if tenant.copies > 1 else ""
        if tenant.undone is not None and offered is not None and offered.mean > OVERLOAD * due.mean:
            asks = f"asks for {format_percent(offered.mean)} of the engine{each}"
            entitled = f"is entitled to {format_percent(due.mean)}"
            line = f"{label(tenant)} {asks} and {entitled}: its queue grows whatever the timeslices are"
            yield tenant.name, line + "; give it more weight or fewer requests"


def _few_requests(found: Report) -> Iterator[str]:
    """Yield a line for each tenant that has a p99 target and too few requests for a p99."""
    held = {verdict.tenant for verdict in found.verdicts if "p99" in verdict.target and verdict.value is not None}
    for tenant in found.tenants:
        if tenant.name in held and (count := min(tenant.figures["requests"].by_seed)) < P99_REQUESTS:
            yield (
                f"{label(tenant)} has {count:.0f} requests in a seed: with fewer than {P99_REQUESTS}, the p99 is close"
                " to the slowest request; increase duration"
            )


def _words(key: str) -> str:
    return key.removesuffix("_share").replace("_per_s", "/s").replace("_", " ")
