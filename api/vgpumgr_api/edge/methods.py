# SPDX-License-Identifier: Apache-2.0
"""The methods of a path. Every path also has HEAD, which is GET without the body, and OPTIONS, which lists the methods.

RFC 9110, sections 9.3.2 and 9.3.7. Endless answers, such as watches, have no HEAD.
"""

from collections.abc import Iterator
from typing import Any

from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

EVENTS = "text/event-stream"
WHOLE = "*"
"""The request target for the whole server instead of one path."""


def names_action(path: str) -> bool:
    """Whether a path ends in an action, for example `h1:drain`. No object has such a name."""
    return ":" in path.rpartition("/")[2]


def is_action(scope: Scope) -> bool:
    """Whether a route exists for the action that the path names."""
    path = scope["path"]
    return names_action(path) and any(
        names_action(route.path_format) and route.path_regex.match(path) for route in scope["app"].routes
    )


def routes_at(scope: Scope) -> Iterator[Any]:
    """Yields every route of this path, whatever the method."""
    for route in scope["app"].routes:
        match, _ = route.matches({**scope, "method": ""})
        if match is not Match.NONE or scope["path"] == WHOLE:
            yield route


def allowed_methods(scope: Scope) -> str:
    """Returns the methods of all routes at this path, "" if there is none. Starlette lists only the first route's."""
    methods: set[str] = set()
    for route in routes_at(scope):
        methods |= {*route.methods, "OPTIONS"}
        if "GET" in route.methods and not _is_endless(route):
            methods.add("HEAD")
    return ", ".join(sorted(methods))


class Methods:
    """ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._head(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "OPTIONS" and (allowed := allowed_methods(scope)):
            headers = [(b"allow", allowed.encode())]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body"})
        else:
            await self.app(scope, receive, send)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any("GET" in route.methods and _is_endless(route) for route in routes_at(scope)):
            await self.app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        scope["method"] = "GET"
        try:
            await self.app(scope, receive, send_without_body)
        finally:
            scope["method"] = "HEAD"  # for the log and metrics


def _is_endless(route: Any) -> bool:
    return getattr(getattr(route, "response_class", None), "media_type", None) == EVENTS
