# SPDX-License-Identifier: Apache-2.0
"""Machines with GPUs."""

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field

from vgpumgr.wire.common import Answer, Generation, Instant, LabelsPatch, Name, Request


class HostState(StrEnum):
    """`ready` takes claims; `cordoned` keeps what it has and takes no more.

    `draining`: cordoned, and an operation waits until it has no slices. `maintenance`: nothing starts there, and
    nothing is expected to be heard of it. `lost`: not heard of for too long; it keeps its claims, and takes none.
    """

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    LOST = "lost"


class HostCreate(Request):
    """Announces a host; the answer carries the token with which its agent enrols, once."""

    name: Name


def _patched(state: object) -> object:
    """pydantic would name them as Python writes them."""
    if state not in (HostState.READY, HostState.CORDONED):
        raise ValueError("not ready or cordoned; others come by POST of the host's :maintenance and :drain")
    return state


class HostPatch(Request):
    """A merge patch."""

    state: Annotated[Literal[HostState.READY, HostState.CORDONED], BeforeValidator(_patched)] | None = None
    labels: LabelsPatch | None = None


class HostFence(Request):
    """Declares a host dead: powered off, never only out of reach. `confirm`: its name once more.

    `force`: also if it reported within the last 90 s.
    """

    confirm: Name
    force: bool = False


class Host(Answer):
    """A machine with GPUs. `online`: it reported within the last 90 s. `epoch_confirmed`: see Desired.

    `fenced_at`: declared dead, and not enrolled since; whatever its `state`, it takes no claims. `lost_at`: since when
    its `state` is `lost`; `operator_state` is what operators made of it, and what it is again once it is heard of.
    `unknown_slices`: at least so many slices it has, or may start VMs with, that are no claims on it; while there are
    any it takes no claims. After an enrolment there may be some until it has reported. `refusals`: what its agent's
    last report says that it could not do, or does not obey.

    `second_boot_at`: since when a second machine is at work with the identity of this host, as after its disk was
    copied; `state_reason` then is ``host.second_boot``, else "".
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
    """Shown once."""

    enroll_token: str
