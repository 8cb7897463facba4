# SPDX-License-Identifier: Apache-2.0
"""The form of the API's refusals: RFC 9457 problem details with a frozen `code`.

A code is never renamed and never changes its HTTP status; new codes may be added.
"""

from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import Answer

MEDIA_TYPE = "application/problem+json"


class Code(StrEnum):
    """Every code that the API answers with."""

    AUTH_REQUIRED = "auth.required"
    AUTH_INVALID = "auth.invalid"
    AUTH_EXPIRED = "auth.expired"
    PERMISSION_DENIED = "permission.denied"
    ROUTE_UNKNOWN = "route.unknown"
    METHOD_NOT_ALLOWED = "method.not_allowed"
    BODY_INVALID = "body.invalid"
    BODY_TOO_LARGE = "body.too_large"
    REQUEST_TIMEOUT = "request.timeout"
    MEDIA_TYPE_UNSUPPORTED = "media_type.unsupported"
    FIELD_INVALID = "field.invalid"
    OBJECT_UNKNOWN = "object.unknown"
    OBJECT_EXISTS = "object.exists"
    OBJECT_IN_USE = "object.in_use"
    GENERATION_REQUIRED = "generation.required"
    GENERATION_STALE = "generation.stale"
    IDEMPOTENCY_MISMATCH = "idempotency.mismatch"
    SECRET_SHOWN = "secret.shown"
    QUOTA_EXCEEDED = "quota.exceeded"
    QUOTA_FORBIDDEN = "quota.forbidden"
    CAPACITY_NONE = "capacity.none"
    HOST_FENCED = "host.fenced"
    HOST_ONLINE = "host.online"
    HOST_DRAINING = "host.draining"
    HOST_SECOND_BOOT = "host.second_boot"
    GPU_PRESENT = "gpu.present"
    CA_ABSENT = "ca.absent"
    RESERVATION_USED = "reservation.used"
    SLICE_BOUND = "slice.bound"
    SLICE_RELEASING = "slice.releasing"
    SLICE_MOVING = "slice.moving"
    SLICE_MOVED = "slice.moved"
    WATCH_EXPIRED = "watch.expired"
    RATE_EXCEEDED = "rate.exceeded"
    OPERATION_DONE = "operation.done"
    USAGE_EXPIRED = "usage.expired"
    ISSUER_UNREACHABLE = "issuer.unreachable"
    DATABASE_BUSY = "database.busy"
    DATABASE_OUTDATED = "database.outdated"
    DATABASE_UNUSABLE = "database.unusable"
    API_FULL = "api.full"
    API_STOPPING = "api.stopping"
    INTERNAL = "internal"


STATUS: dict[Code, int] = {
    Code.AUTH_REQUIRED: 401,
    Code.AUTH_INVALID: 401,
    Code.AUTH_EXPIRED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.ROUTE_UNKNOWN: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.BODY_INVALID: 400,
    Code.BODY_TOO_LARGE: 413,
    Code.REQUEST_TIMEOUT: 408,
    Code.MEDIA_TYPE_UNSUPPORTED: 415,
    Code.FIELD_INVALID: 422,
    Code.OBJECT_UNKNOWN: 404,
    Code.OBJECT_EXISTS: 409,
    Code.OBJECT_IN_USE: 409,
    Code.GENERATION_REQUIRED: 428,
    Code.GENERATION_STALE: 412,
    Code.IDEMPOTENCY_MISMATCH: 422,
    Code.SECRET_SHOWN: 409,
    Code.QUOTA_EXCEEDED: 403,
    Code.QUOTA_FORBIDDEN: 403,
    Code.CAPACITY_NONE: 409,
    Code.HOST_FENCED: 403,
    Code.HOST_ONLINE: 409,
    Code.HOST_DRAINING: 409,
    Code.HOST_SECOND_BOOT: 409,
    Code.GPU_PRESENT: 409,
    Code.CA_ABSENT: 409,
    Code.RESERVATION_USED: 409,
    Code.SLICE_BOUND: 409,
    Code.SLICE_RELEASING: 409,
    Code.SLICE_MOVING: 409,
    Code.SLICE_MOVED: 409,
    Code.WATCH_EXPIRED: 410,
    Code.RATE_EXCEEDED: 429,
    Code.OPERATION_DONE: 409,
    Code.USAGE_EXPIRED: 410,
    Code.ISSUER_UNREACHABLE: 503,
    Code.DATABASE_BUSY: 503,
    Code.DATABASE_OUTDATED: 503,
    Code.DATABASE_UNUSABLE: 503,
    Code.API_FULL: 503,
    Code.API_STOPPING: 503,
    Code.INTERNAL: 500,
}


class Subject(Answer):
    """An object that exists. `kind`: as in the kinds of its events, such as ``slice``. `vm_uuid`: the VM of a slice.

    It has an `id` or a `name`, whichever its path uses.
    """

    kind: str
    id: UUID | None = None
    name: str | None = None
    vm_uuid: UUID | None = None


class Reason(Answer):
    """One of several causes. `field`: JSON path of the member at fault; `count`: how many GPUs it rules out.

    `about`: the object that stands in the way.
    """

    code: str
    detail: str
    field: str = ""
    count: int | None = None
    about: Subject | None = None


class Problem(Answer):
    """The body of every answer with a status of 400 or more. `detail` says what to do about it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    reasons: list[Reason] = Field(default_factory=list)
    limits: dict[str, Any] = Field(default_factory=dict)
