# SPDX-License-Identifier: Apache-2.0
"""The request headers that the API interprets: Authorization, If-Match, Content-Type; and the ETag of an answer."""

import re
from uuid import UUID

from starlette.datastructures import Headers

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.errors import Refusal
from vgpumgr_api.resources.generations import Seen, mark_of

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
ONCE = ("content-type", "idempotency-key", "last-event-id")
FORWARDED = ("via", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""Headers that proxies add: RFC 9110, section 7.6.3; RFC 7239; and its predecessors. Only a proxy that ends TLS can add
them.
"""

# Our tokens are short; an issuer's have three parts.
_BEARER = re.compile(
    r"bearer +([A-Za-z0-9._~+/=-]{1,512}|[A-Za-z0-9_-]{1,512}\.[A-Za-z0-9_-]{1,8192}\.[A-Za-z0-9_-]{1,1024})",
    re.IGNORECASE,
)
ETAG = r'^"(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{16}))?"$'
"""The format of If-Match: an ETag of ours, or only a generation."""


def bearer(headers: Headers) -> str:
    """Returns the token. Raises Refusal: AUTH_REQUIRED without one, AUTH_INVALID for a malformed one."""
    values = headers.getlist("authorization")
    if not values:
        raise Refusal(Code.AUTH_REQUIRED, "send a token: Authorization: Bearer TOKEN")
    match = _BEARER.fullmatch(values[0].strip())
    if len(values) > 1 or match is None:
        raise Refusal(Code.AUTH_INVALID, "the Authorization header is not one bearer token")
    return match[1]


def authorization_token(headers: Headers) -> str:
    """Returns the bearer token that was sent, "" if there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def seen(headers: Headers) -> Seen | None:
    """Returns the state that a change is based on, None if the client did not name it."""
    values = headers.getlist("if-match")
    if not values:
        return None
    match = re.fullmatch(ETAG, values[0].strip())
    if len(values) > 1 or match is None:
        detail = 'not one ETag; send that of the last GET, as in If-Match: "3-5f0c8e21b7d94a36"'
        raise field_refusal("header.if-match", detail)
    return Seen(int(match[1]), match[2])


def etag(epoch: UUID, identity: UUID, generation: int) -> str:
    """Returns a tag that differs from that of any other state of any object, also from states before a restore."""
    return f'"{generation}-{mark_of(epoch, identity)}"'


def announces_body(headers: Headers) -> bool:
    """Whether a body follows the headers."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def refuse_repeated_headers(headers: Headers) -> None:
    """Refuses a repeated header, of which only the first would be read.

    Authorization and If-Match are checked where they are read.
    """
    for name in ONCE:
        if len(headers.getlist(name)) > 1:
            raise field_refusal(f"header.{name}", "given more than once")


def refuse_forwarded(headers: Headers) -> None:
    """Refuses a request through a proxy that ends TLS, for routes where the client must show us its certificate."""
    for name in FORWARDED:
        if name in headers:
            detail = (
                "a proxy before this API ends TLS, and agents' certificates do not come through; have it pass TLS on, "
                "or take agent_ca_certificate out of the API's settings. The one-time token is as good as before"
            )
            raise field_refusal(f"header.{name}", detail)


def require_json(method: str, headers: Headers) -> None:
    """Refuses a body of another media type, and a compressed one, whose decompressed size is unknown.

    An absent body has no type; the model decides whether a body is required.
    """
    empty = not announces_body(headers)
    codings = ",".join(headers.getlist("content-encoding")).split(",")
    if not empty and any(each.strip().lower() not in ("", "identity") for each in codings):
        raise Refusal(Code.MEDIA_TYPE_UNSUPPORTED, "send the body as it is, without Content-Encoding")
    accepted = (MERGE_PATCH, JSON) if method == "PATCH" else (JSON,)
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given in accepted or (empty and not given):
        return
    raise Refusal(Code.MEDIA_TYPE_UNSUPPORTED, f"send the body as Content-Type: {accepted[0]}")


def field_refusal(field: str, detail: str) -> Refusal:
    """Returns FIELD_INVALID for one field, in the same form as for malformed bodies."""
    reason = Reason(code=Code.FIELD_INVALID.value, detail=detail, field=field)
    return Refusal(Code.FIELD_INVALID, f"{field}: {detail}", reasons=(reason,))
