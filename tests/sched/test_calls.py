# SPDX-License-Identifier: Apache-2.0
"""Invariant 10: calls that are out of order, duplicate, unknown or in the past are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sched.story import MS, US
from vgpumgr.sched._core import ffi, lib
from vgpumgr.sched.core import (
    CallError,
    Field,
    GroupParams,
    ItemInfo,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
    combination_fault,
    histogram_bucket,
    histogram_bucket_start_ns,
)

ENGINE = SchedParams(max_chunk_ns=MS, min_chunk_ns=20 * US)
GROUP = GroupParams(weight=1, timeslice_ns=MS)


def engine() -> tuple[Scheduler, Slice]:
    core = Scheduler(ENGINE)
    group = core.add_group(GROUP, 0, name="g")
    return core, core.add_slice(group, SliceParams(), 0, name="s")


def state_of(core: Scheduler, one: Slice) -> tuple[bytes, ...]:
    return tuple(bytes(ffi.buffer(c)) for c in (core.c, one.group.c, one.c))


def calls(core: Scheduler, one: Slice, now: int) -> dict[str, Callable[[], object]]:
    return {
        "update_group": lambda: core.update_group(one.group, GROUP, now),
        "remove_group": lambda: core.remove_group(one.group, now),
        "add_slice": lambda: core.add_slice(one.group, SliceParams(), now),
        "group_lag_ns": lambda: core.group_lag_ns(one.group, now),
        "update_slice": lambda: core.update_slice(one, SliceParams(), now),
        "remove_slice": lambda: core.remove_slice(one, now),
        "wake": lambda: core.wake(one, now),
        "announce": lambda: core.announce(one, ItemInfo(), now),
        "item_done": lambda: core.item_done(one, now),
        "end_request": lambda: core.end_request(one, now),
        "sleep": lambda: core.sleep(one, now),
        "slice_lag_ns": lambda: core.slice_lag_ns(one, now),
    }


NAMES = list(calls(*engine(), 0))


@pytest.mark.parametrize("name", NAMES)
def test_use_after_remove_is_refused(name: str) -> None:
    core, one = engine()
    core.remove_slice(one, 0)
    core.remove_group(one.group, 0)
    before = state_of(core, one)
    with pytest.raises(CallError, match="not on this engine: add it first") as caught:
        calls(core, one, 1)[name]()
    assert caught.value.field is Field.ABSENT
    assert state_of(core, one) == before


@pytest.mark.parametrize("name", NAMES)
def test_what_is_on_another_engine_is_refused(name: str) -> None:
    core, one = engine()
    other, _ = engine()
    before = state_of(core, one)
    with pytest.raises(CallError) as caught:
        calls(other, one, 1)[name]()
    assert caught.value.field is Field.ABSENT
    assert state_of(core, one) == before
    assert other.now_ns == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("remove_group", "item_done")])
def test_the_past_is_refused(name: str) -> None:
    core, one = engine()
    core.advance(5)
    before = state_of(core, one)
    with pytest.raises(CallError, match="time steps back") as caught:
        calls(core, one, 4)[name]()
    assert caught.value.field is Field.TIME
    assert state_of(core, one) == before


@pytest.mark.parametrize("now", [-1, 2**64])
@pytest.mark.parametrize("name", [*NAMES, "pick", "advance", "busy_until", "set_params", "add_group"])
def test_what_is_no_time_is_refused(name: str, now: int) -> None:
    core, one = engine()
    if name == "remove_group":
        core.remove_slice(one, 0)
    else:
        core.wake(one, 0)
        core.pick(0)
    every = calls(core, one, now) | {
        "pick": lambda: core.pick(now),
        "advance": lambda: core.advance(now),
        "busy_until": lambda: core.busy_until(now),
        "set_params": lambda: core.set_params(ENGINE, now),
        "add_group": lambda: core.add_group(GROUP, now),
    }
    before = state_of(core, one)
    with pytest.raises(CallError, match="not within") as caught:
        every[name]()
    assert caught.value.field is Field.TIME
    assert state_of(core, one) == before
    with pytest.raises(CallError):
        Scheduler(ENGINE, now_ns=now)


OUT_OF_RANGE: dict[str, Callable[[Scheduler, Slice], object]] = {
    "kernel_id": lambda core, one: core.announce(one, ItemInfo(kernel_id=2**32), 0),
    "hint_ns": lambda core, one: core.announce(one, ItemInfo(hint_ns=-1), 0),
    "splits": lambda core, _: core.set_params(replace(ENGINE, splits=2), 0),
    "weight": lambda core, _: core.add_group(replace(GROUP, weight=-1), 0),
    "timeslice_ns": lambda core, one: core.update_group(one.group, replace(GROUP, timeslice_ns=2**64), 0),
    "places": lambda core, _: core.set_params(replace(ENGINE, places=2**32), 0),
    "policy": lambda *_: combination_fault(-1, 0, 0),  # type: ignore[arg-type]
    "piece_ns": lambda core, one: core.predicted_inversion_ns(one.group, 0, 0, 2**64),
    "length_ns": lambda *_: histogram_bucket(-1),
    "bucket": lambda *_: histogram_bucket_start_ns(98),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_what_does_not_fit_its_type_is_named(name: str) -> None:
    core, one = engine()
    before = state_of(core, one)
    with pytest.raises(ValueError, match=f"^{name}: "):
        OUT_OF_RANGE[name](core, one)
    assert state_of(core, one) == before


def test_a_pick_in_the_past_says_when_to_ask_again() -> None:
    core, one = engine()
    core.wake(one, 5)
    decision = ffi.new("struct vgpu_decision *")
    assert lib.vgpu_sched_pick(core.c, 4, decision) == Field.TIME
    assert decision.slice == ffi.NULL
    assert decision.wake_at_ns == 5


def test_what_is_added_cannot_be_added_again() -> None:
    core, one = engine()
    params = ffi.new("struct vgpu_group_params *", {"weight": 1, "timeslice_ns": MS})
    slice_params = ffi.new("struct vgpu_slice_params *", {"weight": 1})
    before = state_of(core, one)
    other = Scheduler(ENGINE)
    for where in (core, other):
        assert lib.vgpu_group_add(where.c, one.group.c, params, 0) == Field.ADDED
    assert lib.vgpu_slice_add(core.c, one.group.c, one.c, slice_params, 0) == Field.ADDED
    assert state_of(core, one) == before


def test_an_item_must_be_there_to_be_done() -> None:
    core, one = engine()
    with pytest.raises(CallError, match="no ready item") as caught:
        core.item_done(one, 0)
    assert caught.value.field is Field.NO_ITEM
    core.wake(one, 0)
    core.item_done(one, 0, next_item=ItemInfo())
    core.item_done(one, 0)
    with pytest.raises(CallError):
        core.item_done(one, 0)


def test_nobody_is_busy_on_an_engine_that_executes_nothing() -> None:
    core, one = engine()
    with pytest.raises(CallError) as caught:
        core.busy_until(5)
    assert caught.value.field is Field.NO_OWNER
    core.wake(one, 3)
    core.pick(3)
    with pytest.raises(CallError) as caught:
        core.busy_until(2)
    assert caught.value.field is Field.TIME


def test_unknown_flags_are_refused() -> None:
    core, one = engine()
    item = ffi.new("struct vgpu_item_info *", {"flags": 2})
    assert lib.vgpu_slice_announce(core.c, one.c, item, 0) == Field.ITEM_FLAGS
    core.wake(one, 0)
    before = state_of(core, one)
    assert lib.vgpu_slice_item_done(core.c, one.c, item, 1) == Field.ITEM_FLAGS
    assert state_of(core, one) == before


def test_asking_for_what_is_not_there_passes_no_time() -> None:
    core, one = engine()
    other = Scheduler(ENGINE)
    assert lib.vgpu_group_lag_ns(other.c, one.group.c, 7) == 0
    assert lib.vgpu_slice_lag_ns(other.c, one.c, 7) == 0
    assert other.now_ns == core.now_ns == 0
