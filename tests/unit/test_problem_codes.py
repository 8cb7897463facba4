# SPDX-License-Identifier: Apache-2.0
"""The API's codes and their HTTP statuses are frozen: a change to this table changes an interface."""

import json
from pathlib import Path

from vgpumgr.wire.problem import STATUS, Code

RELEASED = Path(__file__).resolve().parents[2] / "api/openapi-v1.json"

FROZEN = {
    "auth.required": 401,
    "auth.invalid": 401,
    "auth.expired": 401,
    "permission.denied": 403,
    "route.unknown": 404,
    "method.not_allowed": 405,
    "body.invalid": 400,
    "body.too_large": 413,
    "request.timeout": 408,
    "media_type.unsupported": 415,
    "field.invalid": 422,
    "object.unknown": 404,
    "object.exists": 409,
    "object.in_use": 409,
    "generation.required": 428,
    "generation.stale": 412,
    "idempotency.mismatch": 422,
    "secret.shown": 409,
    "quota.exceeded": 403,
    "quota.forbidden": 403,
    "capacity.none": 409,
    "host.fenced": 403,
    "host.online": 409,
    "host.draining": 409,
    "host.second_boot": 409,
    "gpu.present": 409,
    "ca.absent": 409,
    "reservation.used": 409,
    "slice.bound": 409,
    "slice.releasing": 409,
    "slice.moving": 409,
    "slice.moved": 409,
    "watch.expired": 410,
    "rate.exceeded": 429,
    "operation.done": 409,
    "usage.expired": 410,
    "issuer.unreachable": 503,
    "database.busy": 503,
    "database.unusable": 503,
    "database.outdated": 503,
    "api.full": 503,
    "api.stopping": 503,
    "internal": 500,
}


def test_no_code_is_gone_and_none_has_another_status() -> None:
    now = {code.value: STATUS[code] for code in Code}
    assert {code: now.get(code) for code in FROZEN} == FROZEN


def test_a_code_that_was_released_is_frozen() -> None:
    """This makes the author of a release add new codes to the table."""
    answers = json.loads(RELEASED.read_text())["components"]["responses"].values()
    schemas = [content["schema"] for answer in answers for content in answer["content"].values()]
    released = {
        (code, status)
        for schema in schemas
        for code in schema["properties"]["code"]["enum"]
        for status in schema["properties"]["status"]["enum"]
    }
    assert len(released) > 30
    assert released <= FROZEN.items()
