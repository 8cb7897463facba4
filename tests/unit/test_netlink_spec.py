# SPDX-License-Identifier: Apache-2.0
"""The netlink family is defined once, as a YNL specification; everything generated from it must be the same family."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from vgpumgr_agent.helper.protocol import VERSION
from vgpumgr_agent.helper.request import parse
from vgpumgr_agent.refused import Refused

from vgpumgr import ranges
from vgpumgr.broker.configuration import Tenant
from vgpumgr.control import protocol
from vgpumgr.control.protocol import Command
from vgpumgr.policy.terms import Terms
from vgpumgr.wire.fleet import DesiredGroup

UAPI = Path(__file__).parents[2] / "kmod" / "uapi"
SPEC: dict[str, Any] = yaml.safe_load((UAPI / "vgpumgr.yaml").read_text())
SETS = {
    "gpu": protocol.GPU,
    "tenant": protocol.TENANT,
    "run-length": protocol.RUN_LENGTH,
    "slice": protocol.SLICE,
    "event": protocol.EVENT,
}


def header_constants() -> dict[str, int]:
    """Return names and values of the header's enums, counted like a C compiler does; without private names."""
    text = re.sub(r"/\*.*?\*/", "", (UAPI / "vgpumgr_netlink.h").read_text(), flags=re.S)
    constants: dict[str, int] = {}
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", text, flags=re.S):
        value = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, given = (word.strip() for word in entry.partition("="))
            value = int(given) if given.isdigit() else value + 1
            if not name.startswith("__") and not name.endswith("_MAX"):
                constants[name] = value
    return constants


def upper(name: str) -> str:
    return name.upper().replace("-", "_")


def spec_operations() -> dict[str, int]:
    return {upper(f"vgpumgr-cmd-{operation['name']}"): operation["value"] for operation in SPEC["operations"]["list"]}


def spec_attributes(attribute_set: dict[str, Any]) -> dict[str, int]:
    prefix = attribute_set["name-prefix"]
    return {upper(prefix + a["name"]): number for number, a in enumerate(attribute_set["attributes"], 1)}


def python_constants(prefix: str, numbers: type[IntEnum]) -> dict[str, int]:
    return {prefix + member.name: member.value for member in numbers}


def test_header_and_python_module_are_made_from_the_specification() -> None:
    """If this fails: `kmod/uapi/generate`."""
    command = [sys.executable, UAPI / "generate", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_spec_and_the_header_have_the_same_names_and_numbers() -> None:
    expected = spec_operations()
    for attribute_set in SPEC["attribute-sets"]:
        expected |= spec_attributes(attribute_set)
    for definition in SPEC["definitions"]:
        prefix = definition["name-prefix"]
        expected |= {upper(prefix + entry["name"]): value for value, entry in enumerate(definition["entries"])}
    assert header_constants() == expected


def test_python_and_the_header_have_the_same_names_and_numbers() -> None:
    found = python_constants("VGPUMGR_CMD_", Command)
    for numbers in (protocol.Attach, protocol.Policy, protocol.Mode, protocol.Band):
        found |= python_constants(f"VGPUMGR_{numbers.__name__.upper()}_", numbers)
    for name, attributes in SETS.items():
        found |= python_constants(f"VGPUMGR_A_{upper(name)}_", attributes.numbers)
    assert found == header_constants()


def test_exactly_the_notifications_are_events_of_the_group() -> None:
    for operation in SPEC["operations"]["list"]:
        told = operation["name"].endswith("-ntf")
        assert ("event" in operation, operation.get("mcgrp")) == (told, protocol.EVENTS_GROUP if told else None)
        assert (operation["value"] >= 32) == told


def test_every_operation_uses_attributes_of_its_set() -> None:
    known = {spec["name"]: {attribute["name"] for attribute in spec["attributes"]} for spec in SPEC["attribute-sets"]}
    for operation in SPEC["operations"]["list"]:
        sides = [side for way in ("do", "dump") for side in operation.get(way, {}).values()]
        for side in [*sides, *filter(None, [operation.get("event")])]:
            assert set(side["attributes"]) <= known[operation["attribute-set"]], operation["name"]


def test_setters_are_for_the_privileged_only() -> None:
    for operation in SPEC["operations"]["list"]:
        setter = not operation["name"].endswith(("-get", "-ntf"))
        assert ("admin-perm" in operation.get("flags", [])) == setter, operation["name"]


def test_ranges_of_the_spec_are_those_of_the_scheduler_core() -> None:
    text = (UAPI.parent / "sched" / "vgpu_sched.h").read_text()
    limits = {name: int(value) for name, value in re.findall(r"#define (VGPU_\w+)\s+(\d+)u", text)}
    for name in ("tenant", "slice"):
        (spec,) = (found for found in SPEC["attribute-sets"] if found["name"] == name)
        checks = {attribute["name"]: attribute.get("checks") for attribute in spec["attributes"]}
        assert checks["weight"] == {"min": limits["VGPU_WEIGHT_MIN"], "max": limits["VGPU_WEIGHT_MAX"]}
        assert checks["cap-us"] == {"max": limits["VGPU_CAP_PERIOD_MAX_NS"] // 1000}
        assert checks["cap-period-us"] == {
            "min": limits["VGPU_CAP_PERIOD_MIN_NS"] // 1000,
            "max": limits["VGPU_CAP_PERIOD_MAX_NS"] // 1000,
        }
        assert checks["burst-us"] == {"max": limits["VGPU_BURST_MAX_NS"] // 1000}
        if name == "tenant":
            assert checks["timeslice-us"] == {"max": limits["VGPU_TIMESLICE_MAX_NS"] // 1000}
    assert limits["VGPU_TIMESLICE_MIN_NS"] // 1000 == ranges.TIMESLICE_US_MIN
    assert limits["VGPU_RESERVE_PERIOD_MIN_NS"] // 1000 == ranges.RESERVE_PERIOD_US_MIN
    assert limits["VGPU_RESERVE_PERIOD_MAX_NS"] // 1000 == ranges.RESERVE_PERIOD_US_MAX
    assert limits["VGPU_RESERVE_LIMIT_MAX"] == ranges.RESERVE_LIMIT_PERMILLE_MAX
    assert limits["VGPU_HOLD_MAX_NS"] // 1000 == ranges.HOLD_MAX_US_MAX
    assert limits["VGPU_CHUNK_MIN_NS"] // 1000 == ranges.MAX_CHUNK_US_MIN
    assert limits["VGPU_CHUNK_MAX_NS"] // 1000 == ranges.MAX_CHUNK_US_MAX


def test_no_model_takes_a_weight_that_the_kernel_refuses() -> None:
    group: dict[str, Any] = {"gpu": "0000:65:00.0", "tenant": "acme", "timeslice_us": 2000}
    members = {**group, "cap_us": 0, "cap_period_us": 0, "mode": "fair", "band": "fair"}
    members |= {"reserve_us": 0, "reserve_period_us": 0}
    for weight, taken in ((0, False), (1, True), (ranges.WEIGHT_MAX, True), (ranges.WEIGHT_MAX + 1, False)):
        request = {
            "v": VERSION,
            "op": "configure",
            "reserve_us": 0,
            "reserve_period_us": 0,
            **members,
            "weight": weight,
        }
        tries: list[Callable[[], object]] = [
            lambda weight=weight: DesiredGroup(**group, weight=weight),
            lambda weight=weight: Terms(weight=weight),
            lambda weight=weight: Tenant(weight=weight),
            lambda request=request: parse(json.dumps(request).encode()),
        ]
        for tried in tries:
            with nullcontext() if taken else pytest.raises((ValueError, Refused)):
                tried()
