# SPDX-License-Identifier: Apache-2.0
"""Tenants over netlink: valid settings, refused ones with their errors, and a check that a refusal changes nothing."""

import errno
from typing import Any

import pytest

from tests.kmod.control.given import GOOD, new_slice
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.settings import refusal, unchanged
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    BusyError,
    InvalidFieldError,
    OutOfRangeError,
    RefusedError,
    StaleGenerationError,
)


def test_a_tenant_is_configured_changed_and_forgotten(control: Control, host: Sysfs) -> None:
    first = control.set_tenant(GPU, "blue", **GOOD)
    made = control.tenant(GPU, "blue")
    assert made.generation == first > 0
    assert (made.configured, made.weight, made.timeslice_us, made.cap_us) == (True, 100, 1000, 0)
    assert control.set_tenant(GPU, "blue", cap_us=2000, cap_period_us=10000, burst_us=4000) == first + 1
    changed = control.tenant(GPU, "blue")
    assert (changed.weight, changed.timeslice_us) == (100, 1000)
    assert (changed.cap_us, changed.cap_period_us, changed.burst_us) == (2000, 10000, 4000)
    control.delete_tenant(GPU, "blue")
    assert control.tenants(GPU) == []
    assert control.set_tenant(GPU, "blue", **GOOD) == first + 2


CAPPED = {**GOOD, "cap_period_us": 10000}
TENANT_FAULTS: list[tuple[dict[str, Any], str, type[RefusedError]]] = [
    ({"weight": 100}, "timeslice-us", InvalidFieldError),
    ({"timeslice_us": 1000}, "weight", InvalidFieldError),
    ({**GOOD, "weight": 0}, "weight", OutOfRangeError),
    ({**GOOD, "weight": 10001}, "weight", OutOfRangeError),
    ({**GOOD, "weight": 0xFFFFFFFF}, "weight", OutOfRangeError),
    ({**GOOD, "timeslice_us": 0}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "timeslice_us": 9}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "timeslice_us": 1000001}, "timeslice-us", OutOfRangeError),
    ({**GOOD, "cap_us": 100}, "cap-period-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 10001}, "cap-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 99, "cap_period_us": 1000000}, "cap-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 1000001}, "cap-us", OutOfRangeError),
    ({**GOOD, "cap_us": 50, "cap_period_us": 99}, "cap-period-us", OutOfRangeError),
    ({**GOOD, "cap_us": 100, "cap_period_us": 1000001}, "cap-period-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 100, "burst_us": 9}, "burst-us", OutOfRangeError),
    ({**CAPPED, "cap_us": 100, "burst_us": 8000001}, "burst-us", OutOfRangeError),
    ({**GOOD, "if_generation": 7}, "if-generation", StaleGenerationError),
]


@pytest.mark.parametrize(("options", "field", "kind"), TENANT_FAULTS)
@pytest.mark.parametrize("exists", [False, True])
def test_a_bad_parameter_of_a_tenant_is_refused(
    control: Control, host: Sysfs, options: dict[str, Any], field: str, kind: type[RefusedError], exists: bool
) -> None:
    if exists and kind is InvalidFieldError:
        pytest.skip("only a tenant that is new needs this field")
    if exists:
        control.set_tenant(GPU, "blue", weight=7, timeslice_us=1700)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", **options))
    assert type(error) is kind, str(error)
    assert error.field == field
    assert field in str(error)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "tenänt", "a\n", "x" * 64, "*"])
def test_a_bad_name_of_a_tenant_is_refused(control: Control, host: Sysfs, name: str) -> None:
    uuid = new_slice(host)
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, name, **GOOD))
        assert error.errno in (errno.EINVAL, errno.ERANGE)
        assert error.field == "tenant"
        if name:  # an empty name means no tenant
            error = refusal(lambda: control.set_slice(uuid, tenant=name))
            assert error.errno in (errno.EINVAL, errno.ERANGE)
            assert error.field == "tenant"
        error = refusal(lambda: host.write(uuid, "tenant", name))
        assert (error.errno, error.field) == (errno.EINVAL, "tenant")


def test_names_of_63_characters_are_good(control: Control, host: Sysfs) -> None:
    name = "A.b_c-9" * 9
    assert len(name) == 63
    control.set_tenant(GPU, name, **GOOD)
    control.set_slice(new_slice(host), tenant=name)
    assert control.tenant(GPU, name).slices == 1


def test_generations_compare_and_set(control: Control, host: Sysfs) -> None:
    first = control.set_tenant(GPU, "blue", **GOOD, if_generation=0)
    assert first == control.tenant(GPU, "blue").generation > 0
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", weight=5, if_generation=0))
        assert isinstance(error, StaleGenerationError)
        assert error.field == "if-generation"
        assert isinstance(
            refusal(lambda: control.set_tenant(GPU, "blue", weight=5, if_generation=first + 1)), StaleGenerationError
        )
    second = control.set_tenant(GPU, "blue", weight=5, if_generation=first)
    assert second > first
    assert control.tenant(GPU, "blue").weight == 5
    with unchanged(control, host):
        refusal(lambda: control.set_tenant(GPU, "blue", weight=0, if_generation=second))
    assert control.tenant(GPU, "blue").generation == second


def test_a_tenant_that_was_made_anew_is_another_one(control: Control, host: Sysfs) -> None:
    """An update based on an earlier tenant of the same name changes nothing, and the counters of the two are
    distinct."""
    read = control.set_tenant(GPU, "blue", **GOOD)
    before = control.tenant(GPU, "blue")
    control.delete_tenant(GPU, "blue")
    assert control.set_tenant(GPU, "blue", **GOOD, if_generation=0) > read
    with unchanged(control, host):
        error = refusal(lambda: control.set_tenant(GPU, "blue", weight=5, if_generation=read))
    assert isinstance(error, StaleGenerationError)
    assert control.tenant(GPU, "blue").id > before.id > 0
    control.set_tenant(GPU, "green", **GOOD)
    assert control.tenant(GPU, "green").generation > control.tenant(GPU, "blue").generation


def test_a_tenant_that_only_a_slice_names_has_generation_zero(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_slice(uuid, tenant="blue")
    named = control.tenant(GPU, "blue")
    assert (named.configured, named.generation, named.slices, named.weight) == (False, 0, 1, 0)
    assert not control.slice(uuid).scheduled
    assert control.set_tenant(GPU, "blue", **GOOD, if_generation=0) > 0
    assert control.slice(uuid).scheduled
    assert control.tenant(GPU, "blue").id == named.id > 0


def test_a_tenant_with_slices_stays(control: Control, host: Sysfs) -> None:
    uuid = new_slice(host)
    control.set_tenant(GPU, "blue", **GOOD)
    control.set_slice(uuid, tenant="blue")
    with unchanged(control, host):
        error = refusal(lambda: control.delete_tenant(GPU, "blue"))
        assert isinstance(error, BusyError)
        assert error.field == "tenant"
    control.set_slice(uuid, tenant="")
    control.delete_tenant(GPU, "blue")
    assert control.tenants() == []
