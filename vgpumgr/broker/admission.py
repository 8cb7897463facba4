# SPDX-License-Identifier: Apache-2.0
"""Checks whether the broker's scheduler would accept a configuration.

The scheduler's own core decides; no rule is repeated here.

The broker makes the same check when it receives the configuration (compute/broker/apply.c), but a running broker can
only name the field at fault. This module checks the file before a broker receives it, and its error states the bound.
Importing this module fails where the core is not compiled.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from vgpumgr.broker.control import field_invalid
from vgpumgr.sched.core import Band, Field, GroupParams, ParameterError, SchedParams, Scheduler

NS_PER_US = 1_000
LONGEST_PERIOD_US = 4_000_000
_FILE_NAMES = {
    Field.MAX_CHUNK: "chunk_us",
    Field.WEIGHT: "weight",
    Field.CAP: "cap_permille",
    Field.HOLD: "hold_max_us",
    Field.INVERSION: "inversion_permille",
    Field.RESERVE_LIMIT: "reserve_limit_permille",
}

Fault = tuple[str, str]
"""The field at fault as the file calls it, and what is wrong with its value."""


def check(settings: Mapping[str, Any]) -> None:
    """Refuse a document that the broker's scheduler would refuse. BrokerRefusedError, by the file's field."""
    engine, tenants = settings["engine"], settings["tenants"]
    try:
        scheduler = Scheduler(_engine(engine))
    except ParameterError as error:
        raise field_invalid(*_engine_fault(error.field, engine)) from None
    # Tenants with a reservation come last, because the weights of all tenants limit it.
    for tenant in sorted(tenants, key=lambda each: bool(each["reserve_ns"])):
        try:
            scheduler.add_group(_terms(tenant), 0)
        except ParameterError as error:
            raise field_invalid(*_tenant_fault(error.field, tenant, settings, scheduler)) from None


def _engine(engine: Mapping[str, int]) -> SchedParams:
    return SchedParams(
        max_chunk_ns=engine["chunk_ns"],
        min_chunk_ns=engine["min_chunk_ns"],
        switch_cost_ns=engine["switch_cost_ns"],
        reserve_limit_permille=engine["reserve_limit_permille"],
    )


def _terms(tenant: Mapping[str, Any]) -> GroupParams:
    names = ("weight", "timeslice_ns", "cap_ns", "cap_period_ns", "burst_ns", "reserve_ns", "reserve_period_ns")
    holding = ("hold_max_ns", "inversion_permille", "inversion_burst_ns")
    return GroupParams(band=Band[tenant["band"].upper()], **{name: tenant[name] for name in (*names, *holding)})


# ---- the field at fault, by its name in the file


def _engine_fault(field: Field, engine: Mapping[str, int]) -> Fault:
    if field == Field.MIN_CHUNK:
        return "engine.min_chunk_us", f"at most {_us(engine['chunk_ns'])}: engine.chunk_us"
    return f"engine.{_file_name(field)}", _unexplained(field)


def _tenant_fault(field: Field, tenant: Mapping[str, Any], settings: Mapping[str, Any], scheduler: Scheduler) -> Fault:
    engine, tenants = settings["engine"], settings["tenants"]
    where = f"tenants.{tenant['name']}.{_file_name(field)}"
    floor_ns = scheduler.timeslice_floor_ns
    floor = f"at least {_us(floor_ns)}{_times(floor_ns, engine, 'switch_cost')}"
    if field == Field.TIMESLICE:
        return where, floor
    if field == Field.BURST:
        return where, f"0, or {floor}"
    if field == Field.RESERVE_PERIOD:
        return where, _period_bound(tenant, engine)
    if field in (Field.RESERVE, Field.WEIGHT):
        return _reserve_fault(tenant, tenants, engine)
    return where, _unexplained(field)


def _period_bound(tenant: Mapping[str, Any], engine: Mapping[str, int]) -> str:
    """Return the shortest period that the core accepts with this chunk."""

    def is_long_enough(period_us: int) -> bool:
        terms = _terms({**tenant, "reserve_period_ns": period_us * NS_PER_US})
        try:
            Scheduler(_engine(engine)).add_group(terms, 0)
        except ParameterError as error:
            return error.field != Field.RESERVE_PERIOD
        return True

    if not is_long_enough(LONGEST_PERIOD_US):
        return f"no period is long enough while engine.chunk_us is {_us(engine['chunk_ns'])}; shorten engine.chunk_us"
    bound_us = 1 + bisect_left(range(1, LONGEST_PERIOD_US), True, key=is_long_enough)
    return f"at least {bound_us}{_times(bound_us * NS_PER_US, engine, 'chunk')}"


def _reserve_fault(tenant: Mapping[str, Any], tenants: Sequence[Mapping[str, Any]], engine: Mapping[str, int]) -> Fault:
    """Return the bound that a reservation exceeds. The core only reports that some bound is exceeded."""
    where = f"tenants.{tenant['name']}.reserve_us"
    said = "{} permille of reserve_period_us exceeds the tenant's"
    own = _reserved(tenant)
    if tenant["cap_ns"] and own > (cap := Fraction(tenant["cap_ns"], tenant["cap_period_ns"])):
        return where, f"{said.format(_permille(own))} cap, {_permille(cap)} permille"
    weights = sum(each["weight"] for each in tenants)
    # This tenant's weight may have reduced another tenant's share below that tenant's reservation.
    for each in (tenant, *tenants):
        if (reserved := _reserved(each)) > (share := Fraction(each["weight"], weights)):
            where = f"tenants.{each['name']}.reserve_us"
            return where, f"{said.format(_permille(reserved))} share by weight, {_permille(share)} permille"
    total = sum((_reserved(each, more_ns=engine["chunk_ns"]) for each in tenants), start=Fraction(0))
    return where, (
        f"all reservations, with a chunk_us for each, add up to {_permille(total)} permille;"
        f" engine.reserve_limit_permille is {engine['reserve_limit_permille']}"
    )


def _reserved(tenant: Mapping[str, Any], *, more_ns: int = 0) -> Fraction:
    """Return the part of the accelerator that a tenant reserves. `more_ns` is added to its time in each period."""
    if not tenant["reserve_ns"]:
        return Fraction(0)
    return Fraction(tenant["reserve_ns"] + more_ns, tenant["reserve_period_ns"])


def _file_name(field: Field) -> str:
    """Return the file's name for a field of the core."""
    return _FILE_NAMES.get(field, f"{field.name.lower()}_us")


def _unexplained(field: Field) -> str:
    """Return a text for a fault that the bounds of the file's fields should have caught."""
    return f"the scheduler does not accept it ({field.name})"


def _times(bound_ns: int, engine: Mapping[str, int], name: str) -> str:
    """Return how a bound derives from a field of the engine, "" if it is not a multiple of the field."""
    of_ns = engine[f"{name}_ns"]
    return f": {bound_ns // of_ns} times engine.{name}_us" if of_ns and bound_ns % of_ns == 0 else ""


def _us(ns: int) -> str:
    return str(-(-ns // NS_PER_US))


def _permille(part: Fraction) -> str:
    return f"{float(1000 * part):.1f}".removesuffix(".0")
