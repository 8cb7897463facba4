# SPDX-License-Identifier: Apache-2.0
"""The kinds of route of this API. Before FastAPI handles a request, a route checks the following, in this order.

The caller is authenticated (401) and within its rate limit (429). The token's scopes permit this part of the API (403).
The body's type and coding are supported (415). There is no body where none is read (400). No interpreted header is
repeated, and no query parameter is unknown or repeated (422). The body can be parsed (400). When the request is
complete, its transaction checks once more that the caller is still authenticated; see `call.Call`.

A caller that was looked up recently counts towards its limit before it is looked up again, so that an excess request
costs almost nothing. Concurrent lookups are limited, per credential or, for unknown callers, per address.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor, require_scope
from vgpumgr_api.edge.call import (
    CONFIRMING,
    authenticate,
    credential_of,
    enrolling,
    failed_logins_of,
    limits_of,
    network_of_source,
    recall,
    remembered_of,
    turns_of,
)
from vgpumgr_api.edge.headers import announces_body, field_refusal, refuse_repeated_headers, require_json
from vgpumgr_api.edge.methods import is_action, names_action
from vgpumgr_api.edge.reader import Reader, ReadRequest
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload.turns import metered

RECALLED = "recalled"
"""The name in a request's state which says that its caller was not looked up."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PublicRoute(APIRoute):
    """A route that anybody may call, or whose endpoint identifies callers itself."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Like Starlette's, but without treating an action such as `h1:drain` as an object's name."""
        match, child = super().matches(scope)
        if match is not Match.NONE and not names_action(self.path_format) and is_action(scope):
            return Match.NONE, {}
        return match, child

    def get_route_handler(self) -> Handler:
        if not inspect.iscoroutinefunction(self.endpoint):
            self.dependant.call = _threaded(self.endpoint)
        handle = super().get_route_handler()
        known = frozenset(_query_names(self.dependant))
        field = None if self.body_field is None else self.body_field.field_info
        reader = None if field is None else Reader(field.annotation)
        required = field is not None and field.is_required()

        async def handle_strictly(request: Request) -> Response:
            await self.admit(request)
            if required:
                require_json(request.method, request.headers)
            body = await request.body() if reader is not None or announces_body(request.headers) else b""
            said = bool(body.strip())
            if reader is None:
                refuse_any(body)
            elif said:
                require_json(request.method, request.headers)
            refuse_repeated_headers(request.headers)
            refuse_unknown(request, known)
            async with self.turn(request):
                if reader is None:
                    return await handle(request)
                read = await reader.read(request, body) if said else ReadRequest(request, b"", None)
                try:
                    return await handle(read)
                except RequestValidationError as error:
                    raise read.with_faults(error) from None

        return handle_strictly

    async def admit(self, request: Request) -> None:
        """Raises Refusal for a caller that may not use the route."""

    def turn(self, request: Request) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """Returns the context in which the work is done once the request is complete."""
        return nullcontext()


class OneTimeRoute(PublicRoute):
    """A route for the bearer of a host's one-time token, which the service consumes."""

    async def admit(self, request: Request) -> None:
        async with _place(request):
            with failed_logins_of(request).counting(network_of_source(request), credential_of(request)):
                await run_in_threadpool(enrolling, request)


class Route(PublicRoute):
    """A route for the bearer of a token, below ``/v1``. Sets ``request.state.actor``."""

    async def admit(self, request: Request) -> None:
        actor = await self.identify(request)
        require_scope(actor, self.scope(request.method))

    async def identify(self, request: Request) -> Actor:
        """Looks the caller up, unless it is known to exceed its limit."""
        admitted = _is_admitted(request)
        known = remembered_of(request).find(credential_of(request))
        if known is not None:
            await turns_of(request).require_room(known)
        async with _place(request):
            # Another request with this credential may have been looked up while this one waited.
            admitted = admitted or _is_admitted(request)
            actor = await _look_up(request)
        if not admitted:
            limits_of(request).admit(actor)
        return actor

    def turn(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Returns the request's turn. Endpoints that wait for news take a turn for each step, not for the wait."""
        if inspect.iscoroutinefunction(self.endpoint):
            return nullcontext()
        return turns_of(request).turn(request.state.actor, f"{request.method} {self.path_format}")

    def scope(self, method: str) -> str:
        """Returns the scope that a token with scopes needs here: the part of ``/v1``, and read or write."""
        part = self.path_format.split("/")[2].partition(":")[0]
        return f"{part}:{'read' if method == 'GET' else 'write'}"


class ReadingRoute(Route):
    """A route that changes nothing although its method is not GET."""

    def scope(self, method: str) -> str:  # noqa: ARG002
        return super().scope("GET")


class ConfirmedRoute(Route):
    """A route whose service confirms the caller's credential in its own query, which saves a lookup.

    So a caller that was looked up recently is not looked up before the request. It is looked up before any refusal, so
    that a caller whose credential was revoked meanwhile learns only that.
    """

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_confirmed(request: Request) -> Response:
            try:
                return await handle(request)
            except (Refusal, HTTPException, RequestValidationError):
                if getattr(request.state, RECALLED, False):
                    async with _place(request):
                        await _look_up(request)
                raise

        return handle_confirmed

    async def identify(self, request: Request) -> Actor:
        setattr(request.state, CONFIRMING, True)
        actor = recall(request)
        if actor is None:
            return await super().identify(request)
        limits_of(request).admit(actor)
        setattr(request.state, RECALLED, True)
        return actor


def _is_admitted(request: Request) -> bool:
    """Counts a request for the remembered actor of its credential. Returns False if none is remembered.

    Raises Refusal(RATE_EXCEEDED), which costs neither a thread nor a statement.
    """
    known = remembered_of(request).find(credential_of(request))
    if known is None:
        return False
    request.state.caller = known.name
    limits_of(request).admit(known)
    return True


def _place(request: Request) -> AbstractAsyncContextManager[None]:
    """Returns a place for a lookup: one of the credential's places or, if no actor is remembered, of the address's."""
    credential = credential_of(request)
    known = remembered_of(request).find(credential) is not None
    return turns_of(request).lookup(credential if known else network_of_source(request) or credential)


async def _look_up(request: Request) -> Actor:
    remembered, credential = remembered_of(request), credential_of(request)
    try:
        with failed_logins_of(request).counting(network_of_source(request), credential):
            actor = await run_in_threadpool(authenticate, request)
    except Refusal:
        remembered.forget(credential)
        raise
    remembered.keep(credential, actor)
    return actor


def _threaded(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Runs an endpoint in a thread. FastAPI would use a second thread to validate the answer."""

    async def run(**values: Any) -> Any:
        return await run_in_threadpool(partial(metered, endpoint, **values))

    return run


def _query_names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for part in dependant.dependencies:
        yield from _query_names(part)


def refuse_unknown(request: Request, known: frozenset[str]) -> None:
    """Refuses unknown query parameters: a misspelt filter would otherwise show everything."""
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "this path takes none"
            raise field_refusal(f"query.{name[:100]}", f"no such parameter; {there}")
        if count > 1:
            raise field_refusal(f"query.{name}", "given more than once")


def refuse_any(body: bytes) -> None:
    """Refuses a body where none is read: a misplaced `validate_only` in a body would otherwise have no effect.

    An empty body and an empty object are accepted.
    """
    if body.strip() not in (b"", b"{}"):
        raise Refusal(Code.BODY_INVALID, "this request takes no body; use its path and query")
