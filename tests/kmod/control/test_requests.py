# SPDX-License-Identifier: Apache-2.0
"""Requests of netlink that name nothing, something unknown, or are malformed."""

import errno

import pytest

from tests.kmod.control.given import GOOD, NOWHERE, UNKNOWN
from tests.rig.gpu import ADDRESS as GPU
from tests.rig.settings import refusal, unchanged
from vgpumgr.control import wire
from vgpumgr.control.netlink import Control
from vgpumgr.control.protocol import Command, TenantAttribute
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    InvalidFieldError,
    NotFoundError,
    UnknownGpuError,
)


def test_unknown_objects_are_named(control: Control, host: Sysfs) -> None:
    with unchanged(control, host):
        for act, kind, field in (
            (lambda: control.gpu(NOWHERE), UnknownGpuError, "name"),
            (lambda: control.set_gpu(NOWHERE, policy="equal_share"), UnknownGpuError, "name"),
            (lambda: control.tenant(NOWHERE, "blue"), UnknownGpuError, "gpu"),
            (lambda: control.tenant(GPU, "blue"), NotFoundError, "tenant"),
            (lambda: control.tenants(NOWHERE), UnknownGpuError, "gpu"),
            (lambda: control.slices(NOWHERE), UnknownGpuError, "gpu"),
            (lambda: control.set_tenant(NOWHERE, "blue", **GOOD), UnknownGpuError, "gpu"),
            (lambda: control.delete_tenant(NOWHERE, "blue"), UnknownGpuError, "gpu"),
            (lambda: control.delete_tenant(GPU, "blue"), NotFoundError, "tenant"),
            (lambda: control.slice(UNKNOWN), NotFoundError, "uuid"),
            (lambda: control.slice("blue"), InvalidFieldError, "uuid"),
            (lambda: control.set_slice(UNKNOWN, weight=2), NotFoundError, "uuid"),
            (lambda: control.set_slice(UNKNOWN[:-1] + "x", weight=2), InvalidFieldError, "uuid"),
        ):
            error = refusal(act)
            assert type(error) is kind, str(error)
            assert error.field == field, str(error)


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (Command.GPU_GET, "name"),
        (Command.GPU_SET, "name"),
        (Command.TENANT_GET, "tenant"),
        (Command.TENANT_SET, "tenant"),
        (Command.TENANT_DEL, "tenant"),
        (Command.SLICE_GET, "uuid"),
        (Command.SLICE_SET, "uuid"),
    ],
)
def test_a_request_about_nothing_names_what_is_missing(
    control: Control, host: Sysfs, command: Command, field: str
) -> None:
    with unchanged(control, host):
        error = refusal(lambda: control.request(command, b""))
    assert isinstance(error, InvalidFieldError)
    assert error.field == field
    assert "missing" in error.reason


def tenant_request(*more: bytes) -> bytes:
    names = {TenantAttribute.GPU: GPU, TenantAttribute.TENANT: "blue"}
    given = [wire.encode_attribute(number, wire.encode_value("string", value)) for number, value in names.items()]
    return b"".join((*given, *more))


@pytest.mark.parametrize(
    ("attribute", "field"),
    [
        (wire.encode_attribute(TenantAttribute.WEIGHT, b"\1\0"), "weight"),
        (wire.encode_attribute(TenantAttribute.WEIGHT, bytes(8)), "weight"),
        (wire.encode_attribute(TenantAttribute.IF_GENERATION, bytes(4)), "if-generation"),
        (wire.encode_attribute(TenantAttribute.TENANT, b"blue"), "tenant"),
        (wire.encode_attribute(TenantAttribute.TENANT, b""), "tenant"),
        (wire.encode_attribute(TenantAttribute.GPU, b"0" * 99 + b"\0"), "gpu"),
        (wire.encode_attribute(TenantAttribute.RUN_NS, bytes(8)), "run-ns"),
        (wire.encode_attribute(TenantAttribute.GHOST_NS, bytes(8)), "ghost-ns"),
        (wire.encode_attribute(TenantAttribute.PAD, bytes(8)), "pad"),
        (wire.encode_attribute(999, bytes(4)), "attribute 999"),
    ],
)
def test_a_malformed_attribute_is_refused_and_named(
    control: Control, host: Sysfs, attribute: bytes, field: str
) -> None:
    good = [wire.encode_attribute(TenantAttribute.WEIGHT, wire.encode_value("u32", 100))]
    good.append(wire.encode_attribute(TenantAttribute.TIMESLICE_US, wire.encode_value("u32", 1000)))
    with unchanged(control, host):
        error = refusal(lambda: control.request(Command.TENANT_SET, tenant_request(*good, attribute)))
    assert error.errno in (errno.EINVAL, errno.ERANGE)
    assert error.field == field
