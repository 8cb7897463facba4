# SPDX-License-Identifier: Apache-2.0
"""Operations: work that takes longer than a request, and what started them."""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import Answer, Generation, Instant, LabelsPatch, Request

DRAIN_DEADLINE_S = 24 * 3600
DEADLINE_S_MAX = 30 * 24 * 3600


class OperationState(StrEnum):
    """All but `running` are final."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Progress(Answer):
    """`left` of `total` are still to do; `waiting_for` describes the first 100 of these."""

    total: int
    left: int
    waiting_for: list[dict[str, Any]]


class OperationError(Answer):
    """Why an operation failed. `code` is frozen, as those of problems are."""

    code: str
    detail: str


class Operation(Answer):
    """Work that outlives the request, and the API's process, that began it. `kind` as in ``host.drain``.

    `target`: name of what it is about. `request`: what was asked for. `result` once it succeeded, `error` once it
    failed. It is kept until `expires_at` after it was `done`.
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
    """`undo`: put back what the operation changed when it began; a drained host then takes claims as it did before."""

    undo: bool = False


class HostDrain(Request):
    """Waits until no slice is left on a host that takes no more. `then`: the host's state when none is left.

    After `deadline_s` the operation fails and the host stays cordoned. `labels` are changed as the drain begins, or not
    at all, so that they can say whose it is; they stay.
    """

    deadline_s: Annotated[int, Field(ge=1, le=DEADLINE_S_MAX)] = DRAIN_DEADLINE_S
    then: Literal["cordoned", "maintenance"] = "cordoned"
    labels: LabelsPatch = Field(default_factory=dict)


class GpuRehome(Request):
    """Moves the claims of a GPU that is gone. `to`: the id of the GPU of the same host that takes them."""

    to: Annotated[UUID, Field(strict=False)]
