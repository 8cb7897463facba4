# SPDX-License-Identifier: Apache-2.0
"""The headers of answers in the OpenAPI document. Each is described once; every answer refers to those that it has.

The answers' headers are set in `call`, `envelope` and `problems`; schemathesis validates real answers against this.
"""

from http import HTTPStatus
from typing import Any

from vgpumgr_api.edge.event_stream import MEDIA_TYPE as EVENTS

Content = dict[str, Any]

HEADERS: dict[str, Content] = {
    "Accept-Encoding": {"description": "The content coding that a body may have", "schema": {"const": "identity"}},
    "Allow": {
        "description": "The methods that the path supports",
        "schema": {"type": "string", "pattern": "^[A-Z]+(, [A-Z]+)*$"},
    },
    "Cache-Control": {"description": "The answer must not be stored", "schema": {"const": "no-store"}},
    "ETag": {
        "description": "Identifies this state of the object, for `If-Match`",
        "schema": {"type": "string", "pattern": '^"(0|[1-9][0-9]{0,17})-[0-9a-f]{16}"$'},
    },
    "Location": {
        "description": "Path of the object that was created, or of the operation that began",
        "schema": {"type": "string", "pattern": "^/v1/[a-z]+/[0-9a-z-]+$"},
    },
    "Retry-After": {
        "description": "Seconds after which a retry may succeed",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {
        "description": "How to authenticate",
        "schema": {"type": "string", "pattern": "^Bearer "},
    },
    "X-Accel-Buffering": {"description": "Tells proxies to pass each piece on at once", "schema": {"const": "no"}},
    "X-Request-Id": {
        "description": "Identifies the request, in the log as well: the client's own id, or one that the API chose",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"},
    },
}

ALWAYS = ("Cache-Control", "X-Request-Id")

BY_CONNECTION = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Statuses that are also sent for input that is not a request, and to excess connections. Such answers lack the headers
`ALWAYS`.
"""

OF_STATUS = {
    HTTPStatus.UNAUTHORIZED: "WWW-Authenticate",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "Accept-Encoding",
    HTTPStatus.TOO_MANY_REQUESTS: "Retry-After",
    HTTPStatus.SERVICE_UNAVAILABLE: "Retry-After",
}


def add(operation: Content, method: str, components: Content) -> None:
    """Adds headers to the successful answers of an operation."""
    trial = any(each["name"] == "validate_only" for each in operation.get("parameters", ()))
    good = {int(status): answer for status, answer in operation["responses"].items() if status.startswith("2")}
    for status, answer in good.items():
        answer["headers"] = _named(components, *ALWAYS)
        if EVENTS in answer.get("content", {}):
            answer["headers"] |= _named(components, "X-Accel-Buffering")
        if trial and status == HTTPStatus.OK and len(good) > 1:
            continue  # an object that was only validated has no state
        members = _members(answer, components)
        if "generation" in members and "fleet" not in operation["tags"]:
            answer["headers"] |= _named(components, "ETag", always=not (trial and len(good) == 1))
        if method == "post" and status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED) and "id" in members:
            answer["headers"] |= _named(components, "Location")


def of_refusal(components: Content, status: int | None = None) -> Content:
    """Returns the headers of a problem. `status` None: of any problem, including unknown ones."""
    if status is None:
        return _named(components, "Allow", *ALWAYS, *OF_STATUS.values(), always=False)
    named = _named(components, *ALWAYS, always=status not in BY_CONNECTION)
    own = OF_STATUS.get(HTTPStatus(status))
    return named if own is None else named | _named(components, own)


def _named(components: Content, *names: str, always: bool = True) -> Content:
    """Returns references to headers. `always`: whether they are always present, `required` in the document."""
    found = {}
    for name in names:
        known = name if always else f"{name}-at-times"
        components.setdefault("headers", {})[known] = HEADERS[name] | {"required": always}
        found[name] = {"$ref": f"#/components/headers/{known}"}
    return found


def _members(answer: Content, components: Content) -> Content:
    """Returns the members of the object that is the answer; an empty mapping for a list."""
    for media in answer.get("content", {}).values():
        name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
        members: Content = components["schemas"].get(name, {}).get("properties", {})
        return members
    return {}
