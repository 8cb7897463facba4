# SPDX-License-Identifier: Apache-2.0
"""Policies, modes, bands, reservations and holds of the real module: set, read back, and refused with the name of the
field."""

import errno
import uuid as uuids
from typing import Any

import pytest

from tests.rig.gpu import ADDRESS as GPU
from tests.rig.gpu import Gpu
from tests.rig.settings import refusal, unchanged
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    BusyError,
    InvalidFieldError,
    NoCapacityError,
    OutOfRangeError,
    RefusedError,
    StaleGenerationError,
)

GOOD: dict[str, Any] = {"weight": 100, "timeslice_us": 1000}
RESERVED: dict[str, Any] = {**GOOD, "band": "latency", "reserve_us": 1000, "reserve_period_us": 10000}


@pytest.fixture
def host(gpu: Gpu) -> Sysfs:
    return gpu.sysfs


def new_slice(host: Sysfs) -> str:
    uuid = str(uuids.uuid4())
    host.create(GPU, "mem16m", uuid)
    return uuid


# ---- the GPU


def test_a_gpu_begins_with_best_effort_and_its_limit_of_reservations(control: Control, host: Sysfs) -> None:
    gpu = control.gpu(GPU)
    assert (gpu.policy, gpu.places, gpu.reserve_limit_permille) == ("best_effort", 0, 750)
    assert [host.read_gpu(GPU, name) for name in ("policy", "places", "reserve_limit_permille")] == [
        "best_effort",
        "0",
        "750",
    ]


def test_each_policy_can_be_set_and_read_back(control: Control, host: Sysfs) -> None:
    before = control.gpu(GPU).generation
    assert control.set_gpu(GPU, policy="fixed_share", places=4) == before + 1
    gpu = control.gpu(GPU)
    assert (gpu.policy, gpu.places, gpu.reserve_limit_permille) == ("fixed_share", 4, 0)
    assert host.read_gpu(GPU, "policy") == "fixed_share"
    control.set_gpu(GPU, places=6)
    assert (control.gpu(GPU).policy, control.gpu(GPU).places) == ("fixed_share", 6)
    control.set_gpu(GPU, policy="equal_share")
    assert (control.gpu(GPU).policy, control.gpu(GPU).places) == ("equal_share", 0)
    control.set_gpu(GPU, policy="best_effort", reserve_limit_permille=300, max_chunk_us=200)
    gpu = control.gpu(GPU)
    assert (gpu.policy, gpu.reserve_limit_permille, gpu.max_chunk_us) == ("best_effort", 300, 200)
    assert gpu.generation == control.set_gpu(GPU, policy="best_effort") - 1
    assert control.gpu(GPU).reserve_limit_permille == 300, "the same policy again changes nothing"


def test_the_attributes_set_the_same(control: Control, host: Sysfs) -> None:
    host.write_gpu(GPU, "policy", "fixed_share places=3")
    assert (control.gpu(GPU).policy, control.gpu(GPU).places) == ("fixed_share", 3)
    host.write_gpu(GPU, "places", 5)
    assert host.read_gpu(GPU, "places") == "5"
    host.write_gpu(GPU, "policy", host.read_gpu(GPU, "policy"))
    assert control.gpu(GPU).places == 5
    host.write_gpu(GPU, "policy", "best_effort")
    host.write_gpu(GPU, "reserve_limit_permille", 100)
    assert control.gpu(GPU).reserve_limit_permille == 100
    before = control.gpu(GPU).generation
    host.write_gpu(GPU, "max_chunk_us", 300)
    assert (control.gpu(GPU).generation, control.gpu(GPU).max_chunk_us) == (before + 1, 300)


GPU_FAULTS: list[tuple[dict[str, Any], str, type[RefusedError]]] = [
    ({"policy": "best"}, "policy", InvalidFieldError),
    ({"policy": "fixed_share"}, "places", OutOfRangeError),
    ({"policy": "fixed_share", "places": 0}, "places", OutOfRangeError),
    ({"policy": "fixed_share", "places": 10001}, "places", OutOfRangeError),
    ({"places": 4}, "places", OutOfRangeError),
    ({"policy": "equal_share", "places": 4}, "places", OutOfRangeError),
    ({"policy": "equal_share", "reserve_limit_permille": 1}, "reserve-limit-permille", OutOfRangeError),
    ({"reserve_limit_permille": 751}, "reserve-limit-permille", OutOfRangeError),
    ({"max_chunk_us": 0}, "max-chunk-us", OutOfRangeError),
    ({"max_chunk_us": 9}, "max-chunk-us", OutOfRangeError),
    ({"max_chunk_us": 10000001}, "max-chunk-us", OutOfRangeError),
    ({"max_chunk_us": 500, "if_generation": 1 << 40}, "if-generation", StaleGenerationError),
]


@pytest.mark.parametrize(("options", "field", "kind"), GPU_FAULTS)
def test_a_bad_parameter_of_a_gpu_is_refused(
    control: Control, host: Sysfs, options: dict[str, Any], field: str, kind: type[RefusedError]
) -> None:
    with unchanged(control, host):
        error = refusal(lambda: control.set_gpu(GPU, **options))
    assert type(error) is kind, str(error)
    assert error.field == field
    assert field in str(error)


@pytest.mark.parametrize(
    ("attribute", "value", "number"),
    [
        ("policy", "", errno.EINVAL),
        ("policy", "best", errno.EINVAL),
        ("policy", "best_effort fixed_share", errno.EINVAL),
        ("policy", "fixed_share places=", errno.EINVAL),
        ("policy", "fixed_share places=-1", errno.EINVAL),
        ("policy", "fixed_share  places=4", errno.EINVAL),
        ("policy", "fixed_share", errno.ERANGE),
        ("policy", "fixed_share places=0", errno.ERANGE),
        ("policy", "equal_share places=4", errno.ERANGE),
        ("policy", "equal_share\0", errno.EINVAL),
        ("policy", "equal_share" + " " * 40, errno.EINVAL),
        ("places", "4", errno.ERANGE),
        ("places", "many", errno.EINVAL),
        ("reserve_limit_permille", "751", errno.ERANGE),
        ("reserve_limit_permille", "4294967296", errno.ERANGE),
        ("reserve_limit_permille", "-1", errno.EINVAL),
    ],
)
def test_a_bad_attribute_of_a_gpu_is_refused(
    control: Control, host: Sysfs, attribute: str, value: str, number: int
) -> None:
    with unchanged(control, host):
        error = refusal(lambda: host.write_gpu(GPU, attribute, value))
    assert (error.errno, error.field) == (number, attribute)


def test_what_tenants_rely_on_stays(control: Control, host: Sysfs) -> None:
    """Refused: a policy with a tenant under it, a limit below the reserved time, a chunk too long for a reservation."""
    control.set_tenant(GPU, "blue", **RESERVED)  # counts (1000 + 400) of 10000 us
    with unchanged(control, host):
        for options, field in (
            ({"policy": "equal_share"}, "policy"),
            ({"policy": "fixed_share", "places": 4}, "policy"),
            ({"reserve_limit_permille": 139}, "reserve-limit-permille"),
            ({"max_chunk_us": 2501}, "max-chunk-us"),
        ):
            error = refusal(lambda given=options: control.set_gpu(GPU, **given))  # type: ignore[misc]
            assert isinstance(error, BusyError), str(error)
            assert error.field == field
        for attribute, value in (("policy", "equal_share"), ("reserve_limit_permille", "139"), ("max_chunk_us", 2501)):
            error = refusal(lambda name=attribute, text=value: host.write_gpu(GPU, name, text))  # type: ignore[misc]
            assert (error.errno, error.field) == (errno.EBUSY, attribute)
    control.set_gpu(GPU, reserve_limit_permille=140)
    control.delete_tenant(GPU, "blue")
    control.set_gpu(GPU, policy="equal_share")


def test_generations_of_a_gpu_compare_and_set(control: Control, host: Sysfs) -> None:
    before = control.gpu(GPU).generation
    assert control.set_gpu(GPU, reserve_limit_permille=500, if_generation=before) == before + 1
    with unchanged(control, host):
        error = refusal(lambda: control.set_gpu(GPU, reserve_limit_permille=400, if_generation=before))
    assert isinstance(error, StaleGenerationError)
    assert error.field == "if-generation"


# ---- tenants


def test_a_reservation_is_set_changed_and_taken_back(control: Control, host: Sysfs) -> None:
    control.set_tenant(
        GPU, "blue", **RESERVED, hold_max_us=2000, inversion_permille=10, inversion_burst_us=900,
    )  # fmt: skip
    blue = control.tenant(GPU, "blue")
    assert (blue.mode, blue.band, blue.reserve_us, blue.reserve_period_us) == ("fair", "latency", 1000, 10000)
    assert (blue.hold_max_us, blue.inversion_permille, blue.inversion_burst_us) == (2000, 10, 900)
    assert (blue.latency_ns, blue.demotions, blue.holds, blue.hold_ns) == (0, 0, 0, 0)
    assert (blue.fills, blue.inversion_ns, blue.ghost_ns) == (0, 0, 0)
    control.set_tenant(GPU, "blue", reserve_us=2000)
    blue = control.tenant(GPU, "blue")
    assert (blue.reserve_us, blue.reserve_period_us, blue.hold_max_us) == (2000, 10000, 2000)
    control.set_tenant(GPU, "blue", band="fair")
    blue = control.tenant(GPU, "blue")
    assert (blue.band, blue.reserve_us, blue.reserve_period_us, blue.hold_max_us) == ("fair", 0, 0, 0)
    assert (blue.inversion_permille, blue.inversion_burst_us) == (0, 0)


RESERVE_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({**GOOD, "mode": "strict"}, "cap-us"),
    ({**GOOD, "reserve_us": 1}, "reserve-us"),
    ({**GOOD, "reserve_period_us": 10000}, "reserve-us"),
    ({**GOOD, "hold_max_us": 1}, "hold-max-us"),
    ({**GOOD, "inversion_permille": 1}, "inversion-permille"),
    ({**GOOD, "inversion_burst_us": 1}, "inversion-burst-us"),
    ({**GOOD, "band": "latency"}, "reserve-period-us"),
    ({**GOOD, "band": "latency", "reserve_us": 1000}, "reserve-period-us"),
    ({**RESERVED, "reserve_us": 0}, "reserve-us"),
    ({**RESERVED, "reserve_us": 10001}, "reserve-us"),
    ({**RESERVED, "reserve_us": 7101}, "reserve-us"),  # above the limit of 750 permille with a chunk of 400 us
    ({**RESERVED, "reserve_us": 4000001}, "reserve-us"),
    ({**RESERVED, "reserve_us": 0xFFFFFFFF, "reserve_period_us": 0xFFFFFFFF}, "reserve-us"),
    ({**RESERVED, "reserve_us": 100, "reserve_period_us": 1599}, "reserve-period-us"),  # below four chunks
    ({**RESERVED, "reserve_period_us": 4000001}, "reserve-period-us"),
    ({**RESERVED, "cap_us": 900, "cap_period_us": 10000}, "reserve-us"),
    ({**RESERVED, "hold_max_us": 1000001}, "hold-max-us"),
    ({**RESERVED, "inversion_permille": 1001}, "inversion-permille"),
    ({**RESERVED, "inversion_burst_us": 8000001}, "inversion-burst-us"),
]


@pytest.mark.parametrize(("options", "field"), RESERVE_FAULTS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_reservation_that_cannot_be_kept_is_refused(
    control: Control, host: Sysfs, options: dict[str, Any], field: str, exists: bool
) -> None:
    if exists:
        control.set_tenant(GPU, "blue", weight=7, timeslice_us=1700)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", **options))
    assert isinstance(error, OutOfRangeError), str(error)
    assert error.field == field, str(error)
    assert field in str(error)


def test_words_that_are_none_are_refused(control: Control, host: Sysfs) -> None:
    with unchanged(control, host):
        for options, field in (({"mode": "loose"}, "mode"), ({"band": "fast"}, "band")):
            error = refusal(lambda given=options: control.set_tenant(GPU, "blue", **GOOD, **given))  # type: ignore[misc]
            assert isinstance(error, InvalidFieldError)
            assert error.field == field


def test_reservations_share_one_limit(control: Control, host: Sysfs) -> None:
    control.set_gpu(GPU, reserve_limit_permille=280)
    control.set_tenant(GPU, "blue", **RESERVED)
    control.set_tenant(GPU, "green", **RESERVED)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "green", reserve_us=1001))
        assert (error.field, error.errno) == ("reserve-us", errno.ERANGE)
    control.set_tenant(GPU, "blue", reserve_us=900)
    control.set_tenant(GPU, "green", reserve_us=1100)


def test_a_weight_does_not_push_a_reservation_above_its_share(control: Control, host: Sysfs) -> None:
    control.set_tenant(GPU, "blue", **{**RESERVED, "reserve_us": 2000})
    control.set_tenant(GPU, "green", weight=400, timeslice_us=1000)
    with unchanged(control, host):
        for name in ("green", "red"):
            error = refusal(lambda tenant=name: control.set_tenant(GPU, tenant, weight=401, timeslice_us=1000))  # type: ignore[misc]
            assert (error.field, error.errno) == ("weight", errno.ERANGE)
        assert refusal(lambda: control.set_tenant(GPU, "blue", reserve_us=2001)).field == "reserve-us"
    control.set_tenant(GPU, "green", weight=399)


# ---- policies and what they allow


@pytest.mark.parametrize(
    ("policy", "options", "field"),
    [
        ("equal_share", {"mode": "strict"}, "mode"),
        ("equal_share", {"band": "latency", "reserve_us": 1000, "reserve_period_us": 10000}, "band"),
        ("equal_share", {"cap_us": 1000, "cap_period_us": 10000}, "cap-us"),
        ("fixed_share", {}, "mode"),
        ("fixed_share", {"mode": "strict", "cap_us": 1000, "cap_period_us": 10000}, "cap-us"),
        ("fixed_share", {"mode": "strict", "band": "latency", "reserve_us": 1, "reserve_period_us": 10000}, "band"),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(
    gpu: Gpu, host: Sysfs, policy: str, options: dict[str, Any], field: str
) -> None:
    gpu.share_by(policy, places=4 if policy == "fixed_share" else None)
    with unchanged(gpu.control, host):
        error = refusal(lambda: gpu.control.set_tenant(GPU, "blue", **GOOD, **options))
    assert (error.field, error.errno) == (field, errno.ERANGE), str(error)
    gpu.tenant("blue", **GOOD, mode="strict" if policy == "fixed_share" else "fair")


def test_places_that_are_taken_are_refused(gpu: Gpu, host: Sysfs) -> None:
    """The places fill up by a new slice, by a tenant whose slices waited, or by a change of their number."""
    control = gpu.control
    gpu.share_by("fixed_share", places=2)
    strict = {**GOOD, "mode": "strict"}
    gpu.tenant("blue", **strict)
    blue = [gpu.slice("blue"), gpu.slice("blue")]
    waiting = gpu.slice("green")
    spare = new_slice(host)
    with unchanged(control, host):
        error = refusal(lambda: control.set_slice(spare, tenant="blue"))
        assert isinstance(error, NoCapacityError)
        assert error.field == "tenant"
        error = refusal(lambda: host.write(spare, "tenant", "blue"))
        assert (error.errno, error.field) == (errno.ENOSPC, "tenant")
        error = refusal(lambda: control.set_tenant(GPU, "green", **strict))
        assert isinstance(error, NoCapacityError)
        assert error.field == "tenant"
        error = refusal(lambda: control.set_gpu(GPU, places=1))
        assert isinstance(error, BusyError)
        assert error.field == "places"
        control.set_slice(blue[0], tenant="blue")
    control.set_slice(blue[0], tenant="")
    control.set_tenant(GPU, "green", **strict)
    assert control.slice(waiting).scheduled
    control.set_slice(blue[1], tenant="green")  # a slice that moves to another tenant keeps its place
    control.set_gpu(GPU, places=3)
    control.set_slice(spare, tenant="blue")
    assert control.slice(spare).scheduled


def test_a_cap_from_another_policy_keeps_a_slice_out(gpu: Gpu, host: Sysfs) -> None:
    control = gpu.control
    capped = gpu.slice("blue")
    control.set_slice(capped, cap_us=100, cap_period_us=1000)
    gpu.share_by("equal_share")
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", **GOOD))
        assert (error.field, error.errno) == ("tenant", errno.ERANGE)
        assert "cap" in error.reason
        assert refusal(lambda: control.set_slice(capped, cap_us=200)).field == "cap-us"
    control.set_slice(capped, cap_us=0)
    control.set_tenant(GPU, "blue", **GOOD)
    assert control.slice(capped).scheduled
