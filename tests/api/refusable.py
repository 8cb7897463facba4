# SPDX-License-Identifier: Apache-2.0
"""The codes with which a route can refuse: those of every Refusal that its handler's code can reach.

The source is read. Everything counts as called that a function names and can reach by imports, annotated parameters and
variables, and annotated results of calls. This sometimes finds one code too many. schemathesis compares the routes'
answers with the document, so it would show a missing code.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from vgpumgr_api.edge.openapi import document
from vgpumgr_api.edge.strict import OneTimeRoute, PublicRoute, Route
from vgpumgr_api.errors import Refusal

from vgpumgr.wire.problem import Code

OURS = "vgpumgr_api"
ALWAYS = {
    Code.INTERNAL,
    Code.FIELD_INVALID,
    Code.API_FULL,
    Code.BODY_INVALID,
    Code.BODY_TOO_LARGE,
    Code.REQUEST_TIMEOUT,
}
"""An internal error, an unknown query parameter, a connection too many, and a body that is not read or too much."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Instance:
    """A value whose class is known."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


def codes(app: FastAPI) -> dict[str, list[str]]:
    """Return the codes of each operation, in their order."""
    found = {route.name: refusals_of(route) for _, _, route in document.operations(app)}
    return {name: [code.value for code in Code if code in found[name]] for name in sorted(found)}


def refusals_of(route: APIRoute) -> frozenset[Code]:
    """Return the codes of one route."""
    begin: list[Callable[..., Any]] = [*_calls(route.dependant)]
    if isinstance(route, Route):
        begin.append(Route.admit)
    if isinstance(route, OneTimeRoute):
        begin.append(OneTimeRoute.admit)
    found = set(ALWAYS)
    if isinstance(route, PublicRoute) and route.body_field is not None:
        found.add(Code.MEDIA_TYPE_UNSUPPORTED)
    for function in begin:
        found |= _reached(function)
    return frozenset(found)


def _calls(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    if dependant.call is not None:
        yield dependant.call
    for part in dependant.dependencies:
        yield from _calls(part)


@cache
def _reached(begin: Callable[..., Any]) -> frozenset[Code]:
    seen: set[Any] = set()
    ahead: list[Any] = [begin]
    found: set[Code] = set()
    while ahead:
        function = ahead.pop()
        if function not in seen:
            seen.add(function)
            own, others = _read(function)
            found |= own
            ahead += others - seen
    return frozenset(found)


@cache
def _read(function: FunctionType) -> tuple[frozenset[Code], frozenset[FunctionType]]:
    """Return the codes with which a function itself refuses, and the functions of ours that it names."""
    tree = _functions_of(function.__module__).get(function.__code__.co_firstlineno)
    if tree is None:  # a lambda is read with the function around it
        return frozenset(), frozenset()
    scope = _scope(function, tree)
    found, named = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _resolved(node.func, scope) is Refusal:
            code = _resolved(node.args[0], scope)
            found |= {code} if isinstance(code, Code) else set()
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            named |= set(_named(_resolved(node, scope)))
    return frozenset(found), frozenset(named)


# ---- source


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(Path(str(sys.modules[module].__file__)).read_text())


@cache
def _functions_of(module: str) -> dict[int, Function]:
    """Return the functions of a module, by the interpreter's number of their first line."""
    found = [node for node in ast.walk(_tree(module)) if isinstance(node, Function)]
    return {min([node.lineno, *(each.lineno for each in node.decorator_list)]): node for node in found}


@cache
def _for_types(module: str) -> dict[str, Any]:
    """Return the names that a module imports for type checkers only."""
    blocks = [
        node for node in _tree(module).body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    return {
        each.asname or each.name: getattr(importlib.import_module(node.module), each.name, None)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }


# ---- what names mean


def _scope(function: FunctionType, tree: Function) -> dict[str, Any]:
    """Return the globals, the variables of enclosing functions, and parameters and variables by their annotations."""
    scope = {**_for_types(function.__module__), **function.__globals__, **inspect.getclosurevars(function).nonlocals}
    hints = _hints(function)
    local = {name: _instance(hints.get(name)) for name in inspect.signature(function).parameters}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            local[node.target.id] = _instance(_evaluated(node.annotation, scope))
    owner = getattr(sys.modules[function.__module__], function.__qualname__.partition(".")[0], None)
    if isinstance(owner, type):
        local["self"] = Instance(owner)
    return scope | local


def _hints(what: Any) -> dict[str, Any]:
    module = getattr(what, "__module__", "")
    try:
        extra = _for_types(module) if module.startswith(OURS) else {}
        return get_type_hints(what, localns=extra, include_extras=True)
    except NameError:
        return {}


def _evaluated(annotation: ast.expr, scope: dict[str, Any]) -> Any:
    try:
        return eval(ast.unparse(annotation), scope.copy())  # noqa: S307  # it is our own source
    except (NameError, TypeError):
        return None


def _instance(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    kinds = [each for each in get_args(hint) or (hint,) if isinstance(each, type) and each is not type(None)]
    return Instance(kinds[0]) if len(kinds) == 1 else None


def _resolved(node: ast.expr, scope: dict[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return scope.get(name)
        case ast.Attribute(value=value, attr=name):
            return _member(_resolved(value, scope), name)
        case ast.Call(func=func):
            called = _resolved(func, scope)
            if isinstance(called, type):
                return Instance(called)
            return _instance(_hints(called).get("return")) if isinstance(called, FunctionType) else None
        case ast.Await(value=value):
            return _resolved(value, scope)
    return None


def _member(of: Any, name: str) -> Any:
    if not isinstance(of, Instance):
        return getattr(of, name, None) if inspect.ismodule(of) or isinstance(of, type) else None
    member = getattr(of.kind, name, None)
    if isinstance(member, property):
        return _instance(_hints(member.fget).get("return"))
    return member if callable(member) else _instance(_hints(of.kind).get(name))


def _named(what: Any) -> Iterator[FunctionType]:
    what = inspect.unwrap(what) if callable(what) else what
    made_by = [vars(what).get("__init__"), vars(what).get("__post_init__")] if isinstance(what, type) else [what]
    for each in made_by:
        if isinstance(each, FunctionType) and each.__module__.startswith(OURS) and each.__code__.co_filename[0] != "<":
            yield each
