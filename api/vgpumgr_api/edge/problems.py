# SPDX-License-Identifier: Apache-2.0
"""Turns exceptions into problem details (RFC 9457) with a frozen code.

There is one handler per kind of exception; `install` registers them. An exception without a handler is a defect, and is
caught by `vgpumgr_api.edge.envelope`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code, Problem, Reason
from vgpumgr_api.edge.faults import in_words
from vgpumgr_api.edge.methods import allowed_methods, is_action, names_action
from vgpumgr_api.errors import Refusal

if TYPE_CHECKING:
    from vgpumgr_api.edge.refused import Refused

REASONS_MAX = 20
NAME_MAX = 100
RETRY_AFTER_S = 1
OF_KEY = "[key]"
"""pydantic appends this to the location of an invalid key."""

CHALLENGES = {
    Code.AUTH_REQUIRED: 'Bearer realm="vgpumgr"',
    Code.AUTH_INVALID: 'Bearer realm="vgpumgr", error="invalid_token"',
    Code.AUTH_EXPIRED: 'Bearer realm="vgpumgr", error="invalid_token"',
}
TOO_LARGE = "the body is larger than 1 MiB, than 8 MiB for a host's report, or than 128 KiB to enrol a host"
_BY_STATUS = {
    400: (Code.BODY_INVALID, "the body is not JSON that this API can read; send one JSON object in UTF-8"),
    404: (Code.ROUTE_UNKNOWN, "no such path; GET /openapi.json lists them"),
    405: (Code.METHOD_NOT_ALLOWED, "this path does not take that method; see the Allow header"),
    413: (Code.BODY_TOO_LARGE, TOO_LARGE),
}


class ProblemResponse(Response):
    """The answer to a failed request. Its body is plain ASCII, because it may quote names that are not valid UTF-8."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        request_id: str,
        reasons: Sequence[Reason] = (),
        limits: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        status = STATUS[code]
        content = _text(code, detail, request_id, reasons, limits or {})
        extra = dict(headers or {})
        if challenge := CHALLENGES.get(code):
            extra["WWW-Authenticate"] = challenge
        if code is Code.MEDIA_TYPE_UNSUPPORTED:
            extra["Accept-Encoding"] = "identity"  # RFC 9110, section 12.5.3
        if retry_after_s is None and status == HTTPStatus.SERVICE_UNAVAILABLE:
            retry_after_s = RETRY_AFTER_S
        if retry_after_s is not None:
            extra["Retry-After"] = str(retry_after_s)
        super().__init__(content, status_code=status, headers=extra)
        self._code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stores the code in the request's state, for the log and metrics."""
        scope["state"]["problem_code"] = self._code.value
        await super().__call__(scope, receive, send)


def problem_text(refusal: Refusal, request_id: str) -> str:
    """Returns a problem as one line, for use where an answer has already begun."""
    return _text(refusal.code, refusal.detail, request_id, refusal.reasons, refusal.limits)


def _text(code: Code, detail: str, request_id: str, reasons: Sequence[Reason], limits: Mapping[str, Any]) -> str:
    problem = Problem(
        title=HTTPStatus(STATUS[code]).phrase,
        status=STATUS[code],
        detail=detail,
        code=code.value,
        request_id=request_id,
        reasons=list(reasons),
        limits=dict(limits),
    )
    # Python's own JSON, because pydantic's rejects lone surrogates, which a client can send in a member's name.
    return json.dumps(problem.model_dump(exclude_none=True), default=str)


def install(app: FastAPI) -> None:
    """Makes every error of `app` a problem."""
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


def request_id(request: Request) -> str:
    return str(request.state.request_id)


async def _refusal(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refusal):
        raise error
    refused: Refused = request.app.state.refused
    await refused.note(request, error)
    return ProblemResponse(
        error.code,
        error.detail,
        request_id=request_id(request),
        reasons=error.reasons,
        limits=error.limits,
        retry_after_s=error.retry_after_s,
    )


async def _http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException) or error.status_code not in _BY_STATUS:
        raise error
    code, detail = _BY_STATUS[error.status_code]
    if code is Code.METHOD_NOT_ALLOWED and names_action(request.scope["path"]) and not is_action(request.scope):
        code, detail = Code.ROUTE_UNKNOWN, "no such action; GET /openapi.json lists them"
    headers = {"Allow": allowed_methods(request.scope)} if code is Code.METHOD_NOT_ALLOWED else None
    return ProblemResponse(code, detail, request_id=request_id(request), headers=headers)


async def _validation(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    found = error.errors()
    if any(tuple(each["loc"]) == ("body",) for each in found):
        detail = "this request needs a body; send one JSON object"
        return ProblemResponse(Code.BODY_INVALID, detail, request_id=request_id(request))
    reasons = [_reason(each) for each in found[:REASONS_MAX]]
    return ProblemResponse(
        Code.FIELD_INVALID, field_detail(reasons, len(found)), request_id=request_id(request), reasons=reasons
    )


def field_detail(reasons: Sequence[Reason], count: int) -> str:
    """Returns one line about `count` invalid fields, of which `reasons` are the first."""
    first = f"{reasons[0].field}: {reasons[0].detail}"
    return first if count == 1 else f"{count} fields are not acceptable, the first is {first}"


def _reason(error: Mapping[str, Any]) -> Reason:
    known = {"missing": "field.missing", "extra_forbidden": "field.unknown"}
    detail, location = in_words(error), error["loc"]
    if error["type"] not in known and location[-1] == OF_KEY and error["input"] == location[-2]:
        detail, location = f"the key is {detail}", location[:-1]
    return Reason(code=known.get(error["type"], Code.FIELD_INVALID.value), detail=detail, field=json_path(location))


def json_path(location: Iterable[int | str]) -> str:
    """Returns a JSON path for a member of the body; ``query.NAME``, ``path.NAME`` or ``header.NAME`` for the rest."""
    place, *members = location
    if place == "header":  # header names are case-insensitive
        members = [str(member).lower() for member in members]
    if place != "body":
        return ".".join([str(place), *(str(member)[:NAME_MAX] for member in members)])
    return "$" + "".join(_step(member) for member in members)


def _step(member: int | str) -> str:
    if isinstance(member, int):
        return f"[{member}]"
    return f".{member}" if member.isidentifier() and len(member) <= NAME_MAX else f"[{json.dumps(member[:NAME_MAX])}]"
