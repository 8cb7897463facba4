# SPDX-License-Identifier: Apache-2.0
"""The parameters that the core accepts, and a check that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.sched.story import MS, SECOND, US
from vgpumgr.sched.core import (
    Field,
    GroupParams,
    ParameterError,
    SchedParams,
    Scheduler,
    SliceParams,
)

ENGINE = SchedParams(max_chunk_ns=MS, min_chunk_ns=20 * US, switch_cost_ns=5 * US)
GROUP = GroupParams(weight=100, timeslice_ns=MS, cap_ns=3 * MS, cap_period_ns=10 * MS, burst_ns=2 * MS)
SLICE = SliceParams(weight=1, cap_ns=MS, cap_period_ns=10 * MS, burst_ns=2 * MS)

BAD_ENGINE = [
    (Field.MAX_CHUNK, {"max_chunk_ns": 0}),
    (Field.MAX_CHUNK, {"max_chunk_ns": 10 * SECOND + 1}),
    (Field.MIN_CHUNK, {"min_chunk_ns": 0}),
    (Field.MIN_CHUNK, {"min_chunk_ns": MS + 1}),
    (Field.SWITCH_COST, {"switch_cost_ns": 10 * MS + 1}),
]
BAD_CAP: list[tuple[Field, dict[str, int]]] = [
    (Field.CAP, {"cap_ns": 10 * MS + 1}),
    (Field.CAP, {"cap_ns": 999}),
    (Field.CAP, {"cap_ns": 2**64 - 1}),
    (Field.CAP, {"cap_ns": 2**64}),
    (Field.CAP_PERIOD, {"cap_period_ns": 0}),
    (Field.CAP_PERIOD, {"cap_period_ns": SECOND + 1}),
    (Field.BURST, {"burst_ns": 100 * US - 1}),
    (Field.BURST, {"burst_ns": 8 * SECOND + 1}),
]
BAD_SLICE = [*BAD_CAP, (Field.WEIGHT, {"weight": 0}), (Field.WEIGHT, {"weight": 10_001})]
BAD_GROUP = [
    *BAD_SLICE,
    (Field.TIMESLICE, {"timeslice_ns": 100 * US - 1}),
    (Field.TIMESLICE, {"timeslice_ns": SECOND + 1}),
]


@pytest.mark.parametrize(("field", "change"), BAD_ENGINE)
def test_bad_engine_parameters_are_named(field: Field, change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        Scheduler(replace(ENGINE, **change))
    assert caught.value.field is field
    core = Scheduler(ENGINE)
    with pytest.raises(ParameterError) as caught:
        core.set_params(replace(ENGINE, **change), 7)
    assert caught.value.field is field
    assert core.c.params.max_chunk_ns == MS
    assert core.now_ns == 0


@pytest.mark.parametrize(("field", "change"), BAD_GROUP)
def test_bad_group_parameters_are_named_and_change_nothing(field: Field, change: dict[str, Any]) -> None:
    core = Scheduler(ENGINE)
    with pytest.raises(ParameterError) as caught:
        core.add_group(replace(GROUP, **change), 5)
    assert caught.value.field is field
    assert core.groups == []
    group = core.add_group(GROUP, 5)
    with pytest.raises(ParameterError) as caught:
        core.update_group(group, replace(GROUP, **change), 7)
    assert caught.value.field is field
    for name in ("weight", "timeslice_ns", "cap_ns", "cap_period_ns", "burst_ns"):
        assert getattr(group.c.params, name) == getattr(GROUP, name)
    assert core.now_ns == 5


@pytest.mark.parametrize(("field", "change"), BAD_SLICE)
def test_bad_slice_parameters_are_named_and_change_nothing(field: Field, change: dict[str, Any]) -> None:
    core = Scheduler(ENGINE)
    group = core.add_group(GROUP, 5)
    with pytest.raises(ParameterError) as caught:
        core.add_slice(group, replace(SLICE, **change), 5)
    assert caught.value.field is field
    target = core.add_slice(group, SLICE, 5)
    with pytest.raises(ParameterError) as caught:
        core.update_slice(target, replace(SLICE, **change), 7)
    assert caught.value.field is field
    for name in ("weight", "cap_ns", "cap_period_ns", "burst_ns"):
        assert getattr(target.c.params, name) == getattr(SLICE, name)


def test_without_a_cap_period_and_burst_do_not_matter() -> None:
    core = Scheduler(ENGINE)
    core.add_group(replace(GROUP, cap_ns=0, cap_period_ns=3, burst_ns=1), 0)


def test_the_limits_themselves_are_good() -> None:
    core = Scheduler(ENGINE)
    assert core.timeslice_floor_ns == 100 * US
    for weight in (1, 10_000):
        for timeslice in (100 * US, SECOND):
            for cap, period in ((1000, 10 * MS), (10 * MS, 10 * MS), (SECOND, SECOND)):
                for burst in (0, 100 * US, 8 * SECOND):
                    core.add_group(
                        GroupParams(
                            weight=weight,
                            timeslice_ns=timeslice,
                            cap_ns=cap,
                            cap_period_ns=period,
                            burst_ns=burst,
                        ),
                        0,
                    )


def test_a_group_with_slices_is_not_removed() -> None:
    core = Scheduler(ENGINE)
    group = core.add_group(GROUP, 0)
    target = core.add_slice(group, SLICE, 0)
    with pytest.raises(ValueError, match="still has slices"):
        core.remove_group(group, 0)
    core.remove_slice(target, 0)
    core.remove_group(group, 0)
    assert core.groups == []
