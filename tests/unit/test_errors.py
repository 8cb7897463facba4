# SPDX-License-Identifier: Apache-2.0
"""Codes are frozen: a change to this list changes an interface."""

import errno

import pytest

from vgpumgr import errors

FROZEN = {
    "control.unavailable",
    "control.protocol",
    "control.interrupted",
    "control.refused",
    "gpu.unknown",
    "object.unknown",
    "field.invalid",
    "field.out_of_range",
    "object.busy",
    "object.exists",
    "generation.stale",
    "capacity.none",
    "permission.denied",
    "api.refused",
    "api.unreachable",
    "api.answer",
    "argument.invalid",
    "settings.invalid",
    "object.missing",
    "claim.mismatch",
    "domain.unknown",
    "libvirt.failed",
    "agent.unreachable",
    "agent.refused",
    "wait.ended",
    "operation.failed",
    "output.failed",
    "scenario.invalid",
    "simulator.missing",
    "probe.refused",
    "program.missing",
    "program.unusable",
    "broker.missing",
    "broker.unreachable",
    "broker.answer",
    "broker.refused",
    "container.refused",
}


def kinds() -> list[type[errors.VgpumgrError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return [kind for kind in found if issubclass(kind, errors.VgpumgrError) and kind is not errors.VgpumgrError]


def test_every_code_is_frozen_and_has_one_exception() -> None:
    codes = [kind.code for kind in kinds()]
    assert len(codes) == len(set(codes))
    assert set(codes) == FROZEN


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for kind in kinds():
        assert f"── {kind.__name__} " in errors.__doc__
        assert kind.code in errors.__doc__


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ESTALE, errors.StaleGenerationError),
        (errno.EACCES, errors.NotPermittedError),
        (errno.EIO, errors.RefusedError),
    ],
)
def test_an_errno_becomes_its_exception(number: int, kind: type[errors.RefusedError]) -> None:
    error = errors.refused(operation="tenant-set", errno=number, field="weight")
    assert type(error) is kind
    assert error.errno == number


def test_the_message_names_operation_field_reason_and_errno_once() -> None:
    plain = errors.refused(operation="tenant-set", errno=errno.ERANGE, field="weight", reason="too large")
    named = errors.refused(operation="tenant-set", errno=errno.ERANGE, field="weight", reason="weight: too large")
    assert str(plain) == str(named) == "tenant-set: weight: too large [ERANGE]"
