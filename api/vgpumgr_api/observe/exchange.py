# SPDX-License-Identifier: Apache-2.0
"""One request that was answered, as metrics and traces see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

NO_ROUTE = "(none)"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """`route`: the template of the path, NO_ROUTE if there is no such path. `code`: of the problem, "" for success.

    `asked`: for how many slices, where that is asked for.

    Route, method, status and code have few values, whatever clients send.
    """

    route: str
    method: str
    status: int
    code: str
    seconds: float
    asked: int = 1


Observer = Callable[[Exchange], None]


def route_of(scope: Mapping[str, Any]) -> str:
    """The template of the path that was asked for, as in ``/v1/slices/{slice_id}``."""
    return str(getattr(scope.get("route"), "path", NO_ROUTE))


def method_of(scope: Mapping[str, Any]) -> str:
    method = str(scope["method"])
    return method if method in METHODS else "other"
