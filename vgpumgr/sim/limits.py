# SPDX-License-Identifier: Apache-2.0
"""Translates a scenario's engine, tenants and slices into the parameters of the engine and its scheduler."""

from vgpumgr.sched.core import Band, Field, GroupParams, Mode, ParameterError, SchedParams, Scheduler, SliceParams
from vgpumgr.sim import schema
from vgpumgr.sim.engine import EngineModel
from vgpumgr.sim.quantity import MILLION, format_time

DEFAULT_WEIGHT = 1
DEFAULT_TIMESLICE_NS = 1_000_000
_CAP_TIMESLICES = 10
_CAP_PERIOD_MIN_NS = 10_000_000

_WHERE: dict[Field, tuple[str, ...]] = {
    Field.WEIGHT: ("weight",),
    Field.TIMESLICE: ("timeslice",),
    Field.CAP: ("cap",),
    Field.CAP_PERIOD: ("cap_period",),
    Field.BURST: ("burst",),
    Field.MODE: ("mode",),
    Field.BAND: ("band",),
    Field.RESERVE: ("reservation",),
    Field.RESERVE_PERIOD: ("reservation", "period"),
    Field.HOLD: ("hold_max",),
    Field.INVERSION: ("inversion",),
    Field.INVERSION_BURST: ("inversion", "burst"),
}


def refusal(
    error: ParameterError, scenario: schema.Scenario, part: schema.Limits | schema.Slice
) -> tuple[tuple[str, ...], str]:
    """Return the path, in a tenant or slice, of the parameter that the scheduler refused, and the reason."""
    reason = str(error).partition(": ")[2] or str(error)
    engine, policy = scenario.engine, scenario.scheduler.policy
    if error.field is Field.TIMESLICE or error.field is Field.BURST:
        core = Scheduler(SchedParams(max_chunk_ns=engine.max_chunk, switch_cost_ns=engine.switch_cost))
        floor_ns = core.timeslice_floor_ns
        because = "what 20 switches cost" if engine.switch_cost * 20 >= floor_ns else "the shortest there is"
        reason = reason.replace("timeslice_floor_ns", f"{format_time(floor_ns)}, {because},")
    elif error.field is Field.CAP and policy != "best_effort":
        reason = f"under {policy} places bound a share; omit the cap"
    elif error.field is Field.CAP:
        reason = "below a 10000th of its cap_period" if part.cap else "mode strict needs one; give a cap, like 25%"
    elif error.field is Field.MODE:
        reason = f"{policy} takes mode {'fair' if policy == 'equal_share' else 'strict'} only"
    return _WHERE.get(error.field, ()), f"the scheduler refuses it: {reason}"


def group_params(limits: schema.Limits) -> GroupParams:
    """Return the scheduler's parameters for a tenant."""
    timeslice_ns = timeslice(limits)
    reservation, inversion = limits.reservation, limits.inversion
    return GroupParams(
        weight=limits.weight or DEFAULT_WEIGHT,
        timeslice_ns=timeslice_ns,
        **_cap(limits, timeslice_ns),
        mode=Mode[(limits.mode or "fair").upper()],
        band=Band[(limits.band or "fair").upper()],
        reserve_ns=reservation.budget if reservation else 0,
        reserve_period_ns=reservation.period if reservation else 0,
        hold_max_ns=limits.hold_max or 0,
        inversion_permille=inversion.share // 1000 if inversion else 0,
        inversion_burst_ns=inversion.burst if inversion else 0,
    )


def slice_params(part: schema.Slice, tenant: schema.Tenant) -> SliceParams:
    return SliceParams(weight=part.weight, **_cap(part, timeslice(tenant)))


def timeslice(limits: schema.Limits) -> int:
    return limits.timeslice or DEFAULT_TIMESLICE_NS


def cap_period(part: schema.Limits | schema.Slice, timeslice_ns: int) -> int:
    """Return the period of a cap: the given one, or the agent's default."""
    return part.cap_period or max(_CAP_TIMESLICES * timeslice_ns, _CAP_PERIOD_MIN_NS)


def _cap(part: schema.Limits | schema.Slice, timeslice_ns: int) -> dict[str, int]:
    if not part.cap:
        return {}
    period_ns = cap_period(part, timeslice_ns)
    return {"cap_ns": part.cap * period_ns // MILLION, "cap_period_ns": period_ns, "burst_ns": part.burst or 0}


def engine_model(part: schema.Engine) -> EngineModel:
    return EngineModel(
        kind=part.kind,
        max_chunk_ns=part.max_chunk,
        min_chunk_ns=part.min_chunk,
        switch_cost_ns=part.switch_cost,
        split_cost_ns=part.split_cost,
        preempt_latency_ns=part.preempt_latency,
    )
