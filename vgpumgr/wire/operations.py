# SPDX-License-Identifier: Apache-2.0
"""Operations, which are work that takes longer than a request, and the requests that start them."""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import Answer, Generation, Instant, LabelsPatch, Request

DRAIN_DEADLINE_S = 24 * 3600
DEADLINE_S_MAX = 30 * 24 * 3600


class OperationState(StrEnum):
    """All states except `running` are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Progress(Answer):
    """`left` of `total` are still to do; `waiting_for` describes the first 100 of them."""

    total: int
    left: int
    waiting_for: list[dict[str, Any]]


class OperationError(Answer):
    """Why an operation failed. `code` is frozen, like those of problems."""

    code: str
    detail: str


class Operation(Answer):
    """Work that outlives the request, and the process of the API, that began it. `kind`: such as ``host.drain``.

    `target`: the name of its object. `request`: what was asked for. It has a `result` once it succeeded, and an `error`
    once it failed. Once it is `done`, it is kept until `expires_at`.
    """

    id: UUID
    kind: str
    target: str
    state: OperationState
    done: bool
    progress: Progress
    request: dict[str, Any]
    result: dict[str, Any] | None
    error: OperationError | None
    actor: str
    generation: Generation
    created_at: Instant
    deadline_at: Instant | None
    done_at: Instant | None
    expires_at: Instant | None


class OperationCancel(Request):
    """`undo`: restore what the operation changed when it began; a drained host then takes claims as before."""

    undo: bool = False


class HostDrain(Request):
    """Cordons a host and waits until it has no slices. `then`: the state that the host gets after that.

    After `deadline_s` the operation fails and the host stays cordoned. `labels` are changed when the drain begins, or
    not at all, so that they can say whose drain it is. They stay.
    """

    deadline_s: Annotated[int, Field(ge=1, le=DEADLINE_S_MAX)] = DRAIN_DEADLINE_S
    then: Literal["cordoned", "maintenance"] = "cordoned"
    labels: LabelsPatch = Field(default_factory=dict)


class GpuRehome(Request):
    """Moves the claims of an absent GPU. `to`: the id of a GPU of the same host that takes them."""

    to: Annotated[UUID, Field(strict=False)]
