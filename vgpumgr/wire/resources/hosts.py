# SPDX-License-Identifier: Apache-2.0
"""Machines with GPUs."""

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field

from vgpumgr.wire.common import Answer, Generation, Instant, LabelsPatch, Name, Request


class HostState(StrEnum):
    """`ready` takes claims; `cordoned` keeps what it has and takes no more.

    `draining`: cordoned, and an operation waits until it has no slices. `maintenance`: no VM starts with a slice there,
    and the host may be silent. `lost`: silent for too long; it keeps its claims and takes no more.
    """

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    LOST = "lost"


class HostCreate(Request):
    """Announces a host. The answer has the token with which its agent enrols, shown once."""

    name: Name


def _patched(state: object) -> object:
    """Refuse other states. pydantic's own message would name the permitted states as Python writes them."""
    if state not in (HostState.READY, HostState.CORDONED):
        raise ValueError("not ready or cordoned; for other states, POST to the host's :maintenance or :drain")
    return state


class HostPatch(Request):
    """A merge patch."""

    state: Annotated[Literal[HostState.READY, HostState.CORDONED], BeforeValidator(_patched)] | None = None
    labels: LabelsPatch | None = None


class HostFence(Request):
    """Declares a host dead, which must be powered off and not only out of reach. `confirm`: its name once more.

    `force`: fence it even if it reported within the last 90 s.
    """

    confirm: Name
    force: bool = False


class Host(Answer):
    """A machine with GPUs. `online`: it reported within the last 90 s. `epoch_confirmed`: see Desired.

    `fenced_at`: when it was declared dead, if it has not enrolled since; such a host takes no claims, whatever its
    `state`. `lost_at`: when its `state` became `lost`. `operator_state`: the state that operators gave it, which it has
    again once it reports. `unknown_slices`: at least this many slices exist there, or may start VMs, that are not
    claims on the host; while there are any, it takes no claims. After an enrolment there may be some until the host has
    reported. `refusals`: what its agent could not do or did not obey, as of its last report.

    `second_boot_at`: since when a second machine runs with the identity of this host, for example because its disk was
    copied; `state_reason` then is ``host.second_boot``, otherwise "".
    """

    id: UUID
    name: Name
    state: HostState
    operator_state: HostState
    enrolled: bool
    online: bool
    epoch_confirmed: bool
    fenced_at: Instant | None
    lost_at: Instant | None
    last_report_at: Instant | None
    agent_version: str
    state_reason: str = ""
    second_boot_at: Instant | None = None
    unknown_slices: int = 0
    refusals: list[str] = Field(default_factory=list)
    labels: dict[str, str] = Field(default_factory=dict)
    generation: Generation
    created_at: Instant


class HostCreated(Host):
    """A host with its `enroll_token`, which is shown once."""

    enroll_token: str
