# SPDX-License-Identifier: Apache-2.0
"""The kind of route that this API is made of. Before FastAPI looks at a request it establishes, in this order:

who asks (401) and not too often (429), that the token is good for this part of the API (403), that the body is of a
type we read (415) and holds only storable text (400), that no query parameter is unknown or given twice (422).
"""

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from vgpumgr.wire.problem import Code
from vgpumgr_api.call import authenticate, limits_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.headers import field_refusal, require_json
from vgpumgr_api.services.actors import require_scope

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PublicRoute(APIRoute):
    """A route that anybody may call, or that knows its callers by itself."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))
        has_body = self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            await self.admit(request)
            if has_body:
                require_json(request.method, request.headers)
                refuse_unstorable(await request.body())
            refuse_unknown(request, known)
            return await handle(request)

        return handle_strictly

    async def admit(self, request: Request) -> None:
        """Raises Refusal for a caller whom the route is not for."""


class Route(PublicRoute):
    """A route for the bearer of a token, below ``/v1``. Leaves ``request.state.actor``."""

    async def admit(self, request: Request) -> None:
        actor = await run_in_threadpool(authenticate, request)
        limits_of(request).admit(actor)
        require_scope(actor, self.scope(request.method))

    def scope(self, method: str) -> str:
        """What a token that has scopes needs here: the part of ``/v1`` and whether it changes something there."""
        part = self.path_format.split("/")[2].partition(":")[0]
        return f"{part}:{'read' if method == 'GET' else 'write'}"


def _query_names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for part in dependant.dependencies:
        yield from _query_names(part)


def refuse_unknown(request: Request, known: frozenset[str]) -> None:
    """A misspelt filter would otherwise show everything."""
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "this path takes none"
            raise field_refusal(f"query.{name[:100]}", f"no such parameter; {there}")
        if count > 1:
            raise field_refusal(f"query.{name}", "given more than once")


def refuse_unstorable(body: bytes) -> None:
    """JSON can say NUL and half a surrogate pair, UTF-8 and PostgreSQL cannot. Leaves other faults to the parser."""
    if b"\\u" not in body:
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeEncodeError):
            raise Refusal(Code.BODY_INVALID, "the body has half a surrogate pair in a string") from None
        raise HTTPException(status_code=400) from None
    if b"\\u0000" in body and _has_nul(json.loads(body)):
        raise Refusal(Code.BODY_INVALID, "the body has a NUL character in a string")


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(each) for pair in value.items() for each in pair)
    return isinstance(value, list) and any(_has_nul(each) for each in value)
