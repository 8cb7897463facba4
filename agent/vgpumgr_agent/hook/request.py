# SPDX-License-Identifier: Apache-2.0
"""Parses requests of libvirt's hook and passes them to the agent. The content of a request is not trusted."""

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from vgpumgr_agent.hook.service import HookService
from vgpumgr_agent.refused import Refused

VERSION = 1
PREPARE = frozenset({"prepare", "migrate", "restore"})
STARTED = frozenset({"started", "reconnect", "attach"})
# libvirt calls `release` right after `stopped`, and `start` right after `prepare`, so these two need no action.
NOTHING = frozenset({"start", "stopped"})
OPERATIONS = PREPARE | STARTED | NOTHING | {"release", "hotplug", "unplug"}
INVALID = "request.invalid"
SLICES_MAX = 64
NAME_MAX = 1024


@dataclass(frozen=True, kw_only=True)
class HookRequest:
    """One call of the hook. `reason`: libvirt's own word for why a VM ended, or "-"."""

    operation: str
    domain: str
    vm_uuid: UUID
    devices: tuple[UUID, ...]
    metadata: tuple[UUID, ...]
    reason: str

    def put_to(self, service: HookService) -> None:
        """Pass the request to the agent. Raises Refused if the agent refuses."""
        vm, devices, metadata, domain = self.vm_uuid, self.devices, self.metadata, self.domain
        if self.operation in PREPARE:
            service.prepare(vm_uuid=vm, devices=devices, metadata=metadata, domain=domain)
        elif self.operation in STARTED:
            service.started(vm_uuid=vm, devices=devices, metadata=metadata, domain=domain)
        elif self.operation == "release":
            service.release(vm_uuid=vm, devices=devices, metadata=metadata, reason=self.reason)
        elif self.operation == "hotplug":
            service.hotplug(vm_uuid=vm, devices=devices, metadata=metadata, domain=domain)
        elif self.operation == "unplug":
            service.unplug(vm_uuid=vm, devices=devices, metadata=metadata, domain=domain)


def parse(line: bytes) -> HookRequest:
    """Return the request in a line. Raises Refused if our hook cannot have sent it."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        raise _invalid("the request is not JSON on one line") from None
    if not isinstance(body, dict):
        raise _invalid("the request is not a JSON object")
    members = {"v", "op", "domain", "vm_uuid", "devices", "metadata", "reason"}
    if set(body) != members:
        odd = ", ".join(sorted(str(name)[:40] for name in set(body) ^ members)[:8])
        raise _invalid(f"missing or unknown members: {odd}")
    if type(body["v"]) is not int or body["v"] != VERSION:
        raise _invalid(f"v: this agent speaks version {VERSION}; install hook and agent from one release")
    operation = _text(body, "op")
    if operation not in OPERATIONS:
        raise _invalid(f"op: not one of {', '.join(sorted(OPERATIONS))}")
    return HookRequest(
        operation=operation,
        domain=_text(body, "domain"),
        vm_uuid=_uuid(body["vm_uuid"], "vm_uuid"),
        devices=_uuids(body, "devices"),
        metadata=_uuids(body, "metadata"),
        reason=_text(body, "reason"),
    )


def _invalid(reason: str) -> Refused:
    return Refused(INVALID, reason)


def _text(body: dict[str, Any], member: str) -> str:
    value = body[member]
    if not isinstance(value, str) or len(value) > NAME_MAX:
        raise _invalid(f"{member}: want a string of at most {NAME_MAX} characters")
    return value


def _uuid(value: object, member: str) -> UUID:
    # UUID() alone also accepts braces, a URN and digits without hyphens
    if isinstance(value, str):
        try:
            parsed = UUID(value)
        except ValueError:
            parsed = None
        if parsed is not None and str(parsed) == value.lower():
            return parsed
    raise _invalid(f"{member}: want a UUID")


def _uuids(body: dict[str, Any], member: str) -> tuple[UUID, ...]:
    values = body[member]
    if not isinstance(values, list) or len(values) > SLICES_MAX:
        raise _invalid(f"{member}: want a list of at most {SLICES_MAX} UUIDs")
    return tuple(_uuid(value, member) for value in values)
