# SPDX-License-Identifier: Apache-2.0
"""One answered request, as metrics and traces see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

NO_ROUTE = "(none)"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An answered request. `route`: the path template, NO_ROUTE for an unknown path.

    `code`: that of the problem, "" for success. `asked`: the number of slices that the request asks for. Route, method,
    status and code have few values, whatever clients send.
    """

    route: str
    method: str
    status: int
    code: str
    seconds: float
    asked: int = 1


Observer = Callable[[Exchange], None]


def route_of(scope: Mapping[str, Any]) -> str:
    """Returns the template of the requested path, for example ``/v1/slices/{slice_id}``."""
    return str(getattr(scope.get("route"), "path", NO_ROUTE))


def method_of(scope: Mapping[str, Any]) -> str:
    method = str(scope["method"])
    return method if method in METHODS else "other"
