# SPDX-License-Identifier: Apache-2.0
"""Reasons why the scheduler core refuses a call: `enum vgpu_sched_field`, in words.

ValueError
  RefusedError             a call that changed nothing; `field` says why
    ParameterError    a parameter at fault
    CallError         a call out of order, or for an object that is absent (or already present)
"""

import enum


class Field(enum.IntEnum):
    """Why a call is refused (`enum vgpu_sched_field`)."""

    NONE = 0
    MAX_CHUNK = 1
    MIN_CHUNK = 2
    SWITCH_COST = 3
    WEIGHT = 4
    TIMESLICE = 5
    CAP = 6
    CAP_PERIOD = 7
    BURST = 8
    POLICY = 9
    PLACES = 10
    RESERVE_LIMIT = 11
    MODE = 12
    BAND = 13
    RESERVE = 14
    RESERVE_PERIOD = 15
    HOLD = 16
    INVERSION = 17
    INVERSION_BURST = 18
    ITEM_FLAGS = 19
    ITEM_HINT = 20
    TIME = 21
    ADDED = 22
    ABSENT = 23
    SLICES = 24
    NO_ITEM = 25
    NO_OWNER = 26
    LEASE = 27


_REASONS = {
    Field.MAX_CHUNK: "max_chunk_ns: outside 1 us..10 s, or too long for a reservation that was given",
    Field.MIN_CHUNK: "min_chunk_ns: zero or above max_chunk_ns",
    Field.SWITCH_COST: "switch_cost_ns: above 10 ms",
    Field.WEIGHT: "weight: outside 1..10000, or it takes the share of a reservation that was given",
    Field.TIMESLICE: "timeslice_ns: below timeslice_floor_ns or above 1 s",
    Field.CAP: "cap_ns: outside a 10000th..all of cap_period_ns, missing for strict, or the policy has no caps",
    Field.CAP_PERIOD: "cap_period_ns: outside 100 us..1 s",
    Field.BURST: "burst_ns: neither 0 nor within timeslice_floor_ns..8 s",
    Field.POLICY: "policy: unknown, or changed while the engine has groups",
    Field.PLACES: "places: only and always with fixed_share, 1..10000, and no fewer than there are slices",
    Field.RESERVE_LIMIT: "reserve_limit_permille: above 750, below what is reserved, or not best_effort",
    Field.MODE: "mode: unknown or not legal under the policy of the engine",
    Field.BAND: "band: unknown or not legal under the policy of the engine",
    Field.RESERVE: "reserve_ns: not within 1..period, limit, share and cap, or outside the latency band",
    Field.RESERVE_PERIOD: "reserve_period_ns: outside 100 us..4 s or below 4 max_chunk_ns",
    Field.HOLD: "hold_max_ns: above 1 s, or outside the latency band",
    Field.INVERSION: "inversion_permille: above 1000, or outside the latency band",
    Field.INVERSION_BURST: "inversion_burst_ns: above 8 s, or outside the latency band",
    Field.ITEM_FLAGS: "flags: unknown",
    Field.ITEM_HINT: "hint_ns: longer than max_chunk_ns on an engine that cannot split",
    Field.TIME: "time steps back or is not within 0..2^64-1: pass one that is not before that of the last call",
    Field.ADDED: "it is on an engine already: remove it there first",
    Field.ABSENT: "it is not on this engine: add it first",
    Field.SLICES: "the group still has slices: remove them first",
    Field.NO_ITEM: "the slice has no ready item: announce it first",
    Field.NO_OWNER: "nobody executes: pick first",
    Field.LEASE: "the engine is lent, or is not, or to another slice: lend and yield in turns",
}


class RefusedError(ValueError):
    """The core refused a call; nothing was changed. `field` says why."""

    def __init__(self, field: Field, subject: object = None) -> None:
        reason = _REASONS[field]
        super().__init__(reason if subject is None else f"{subject}: {reason}")
        self.field = field


class ParameterError(RefusedError):
    """`field` names the first parameter at fault."""


class CallError(RefusedError):
    """The call was out of order, or for an object that is absent (or already present)."""
