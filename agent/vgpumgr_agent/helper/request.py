# SPDX-License-Identifier: Apache-2.0
"""The helper's requests: every member of every operation, with its syntax and range.

The ranges are the kernel's. Unknown members are refused. Otherwise a newer agent could believe that an older helper
obeyed a member that it ignored.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from vgpumgr import ranges
from vgpumgr_agent.helper.protocol import VERSION, Code
from vgpumgr_agent.refused import Refused

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GPU = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_TENANT = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MDEV_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")

Check = Callable[[Any], bool]


def _text(pattern: re.Pattern[str]) -> Check:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _number(least: int, greatest: int) -> Check:
    return lambda value: type(value) is int and least <= value <= greatest


def _word(*words: str) -> Check:
    return lambda value: isinstance(value, str) and value in words


def _boolean(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS: Mapping[str, Check] = {
    "uuid": _text(_UUID),
    "vm_uuid": _text(_UUID),
    "gpu": _text(_GPU),
    "tenant": _text(_TENANT),
    "mdev_type": _text(_MDEV_TYPE),
    "weight": _number(ranges.WEIGHT_MIN, ranges.WEIGHT_MAX),
    "timeslice_us": _number(ranges.TIMESLICE_US_MIN, ranges.TIMESLICE_US_MAX),
    "cap_us": _number(0, ranges.CAP_PERIOD_US_MAX),
    "cap_period_us": _number(0, ranges.CAP_PERIOD_US_MAX),
    "mode": _word("fair", "strict"),
    "band": _word("fair", "latency"),
    "reserve_us": _number(0, ranges.RESERVE_US_MAX),
    "reserve_period_us": _number(0, ranges.RESERVE_PERIOD_US_MAX),
    "memory_max_bytes": _number(0, 1 << 50),
    "tasks_max": _number(0, 1 << 22),
    "cpu_max_permille": _number(0, 1_000_000),
    "mem_bytes": _number(0, 1 << 50),
    "claims": lambda value: isinstance(value, list) and 1 <= len(value) <= _PLACES_MAX,
    "vm_gone": _boolean,
    "withdraw": _boolean,
}
_PLACE = ("uuid", "tenant", "timeslice_us", "mem_bytes", "weight", "cap_us", "cap_period_us")
_PLACES_MAX = 256
"""The most tenants of a broker."""
_LIMITS = ("memory_max_bytes", "tasks_max", "cpu_max_permille")
_SHARE = ("weight", "cap_us", "cap_period_us")

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "observe": (),
    "bind": ("gpu",),
    "configure": ("gpu", "tenant", "timeslice_us", "mode", "band", "reserve_us", "reserve_period_us", *_SHARE),
    "forget_group": ("gpu", "tenant"),
    "prepare": ("uuid", "gpu", "mdev_type", "tenant", "vm_uuid", *_LIMITS, *_SHARE),
    "apply": ("uuid", "tenant", *_SHARE),
    "renew": ("uuid",),
    "withdraw": ("uuid",),
    "remove": ("uuid", "vm_gone", "withdraw"),
    "execute": ("uuid",),
    "halt": ("uuid",),
    "admit": ("gpu", "claims"),
    "dismiss": ("uuid",),
    "adopt": ("uuid",),
}
"""Members of each operation, all required, besides `v` and `op`."""

ROOT_ONLY = ("adopt",)
"""Operations that extend the agent's rights. The agent itself may not request them."""


def parse(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the operation and its checked members. Raises Refused with request.invalid."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise _invalid("not a JSON object") from None
    if not isinstance(request, dict):
        raise _invalid("not a JSON object")
    if type(request.get("v")) is not int or request["v"] != VERSION:
        raise _invalid(f"v: this helper speaks version {VERSION}; agent and helper differ, upgrade both")
    operation = request.get("op")
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise _invalid("op: unknown operation")
    names = OPERATIONS[operation]
    members = {name: value for name, value in request.items() if name not in ("v", "op")}
    for name in members:
        if name not in names:
            raise _invalid(f"{name[:40]!a}: {operation} has no such member")
    for name in names:
        if name not in members:
            raise _invalid(f"{name}: missing")
        if not _CHECKS[name](members[name]):
            raise _invalid(f"{name}: malformed or out of range")
    _check_cap(members)
    _check_reserve(members)
    _check_places(members.get("claims", []))
    return operation, members


def _check_places(claims: list[Any]) -> None:
    for number, claim in enumerate(claims):
        where = f"claims[{number}]"
        if not isinstance(claim, dict) or claim.keys() != set(_PLACE):
            raise _invalid(f"{where}: takes {', '.join(_PLACE)} and nothing else")
        for name in _PLACE:
            if not _CHECKS[name](claim[name]):
                raise _invalid(f"{where}.{name}: malformed or out of range")
        _check_cap(claim)


def _check_cap(members: Mapping[str, Any]) -> None:
    cap_us, period_us = members.get("cap_us", 0), members.get("cap_period_us", 0)
    if not cap_us:
        return
    if period_us < ranges.CAP_PERIOD_US_MIN:
        raise _invalid(f"cap_period_us: a cap takes a period of at least {ranges.CAP_PERIOD_US_MIN}")
    if cap_us > period_us:
        raise _invalid("cap_us: longer than its period")


def _check_reserve(members: Mapping[str, Any]) -> None:
    reserve_us, period_us = members.get("reserve_us", 0), members.get("reserve_period_us", 0)
    if members.get("band") != "latency":
        if reserve_us or period_us:
            raise _invalid("reserve_us: only the latency band has a reservation")
    elif not 0 < reserve_us <= period_us:
        raise _invalid("reserve_us: the latency band needs a reservation that is no longer than its period")


def _invalid(reason: str) -> Refused:
    return Refused(Code.REQUEST_INVALID, reason)
