# SPDX-License-Identifier: Apache-2.0
"""Reads a scenario: YAML to a validated model. Errors name file, line, field, value and what was expected."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from vgpumgr.errors import ScenarioError
from vgpumgr.sim import document, schema
from vgpumgr.sim.document import Node
from vgpumgr.sim.quantity import MILLION, format_percent, format_time
from vgpumgr.sim.workloads import MODELS

MAX_PROBLEMS = 20
MAX_WINDOWS = 10_000
_TYPES = {
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "string_type": "expected text",
    "list_type": "expected a list",
    "dict_type": "expected fields",
    "model_type": "expected fields",
    "model_attributes_type": "expected fields",
}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


@dataclass(frozen=True)
class Loaded:
    """A scenario, and the origin of each of its fields. `folder`: the directory of its traces."""

    scenario: schema.Scenario
    root: Node
    folder: Path

    def error(self, path: Sequence[str | int], problem: str) -> ScenarioError:
        """Return an error at a field, for a fault that only shows when the scenario is played."""
        return ScenarioError(located(self.root, path, problem))


@dataclass(frozen=True)
class Written:
    """A scenario's text, which can be read repeatedly with different settings. `name`: the text's name in errors."""

    text: str
    name: str
    folder: Path = Path()

    def loaded(self, settings: Sequence[str] = (), swept: Sequence[str] = ()) -> Loaded:
        """Return the scenario with ``path=value`` settings applied, and then those of a sweep. ScenarioError."""
        return read(self.text, self.name, folder=self.folder, settings=settings, swept=swept)


def written(path: Path) -> Written:
    """Return the text of a file. ScenarioError."""
    text = document.read_limited(path, limit_bytes=document.MAX_BYTES, what="a scenario in YAML")
    return Written(text, str(path), path.parent)


def read(
    text: str, name: str, *, folder: Path = Path(), settings: Sequence[str] = (), swept: Sequence[str] = ()
) -> Loaded:
    """Return the scenario of a text, with ``path=value`` settings applied. ScenarioError.

    `swept`: settings for which an error names only the field, so that the text is the same for all values of a sweep.
    """
    root = document.parse(text, name)
    for setting in settings:
        field, equals, value = setting.partition("=")
        where = f"--set {setting[:80]}"
        if not equals:
            raise ScenarioError(f"{where}: expected FIELD=VALUE, like tenants.blue.weight=3")
        document.assign(root, field.strip(), document.parse_value(value, where))
    for setting in swept:
        field, _, value = setting.partition("=")
        document.assign(root, field, document.parse_value(value, f"--sweep {field[:80]}"))
    if problems := list(_empty(root, root, ())):
        raise ScenarioError(*problems[:MAX_PROBLEMS])
    try:
        scenario = schema.Scenario.model_validate(root.plain())
    except ValidationError as error:
        problems = list(dict.fromkeys(_problem(root, detail) for detail in error.errors(include_url=False)))
        raise ScenarioError(*problems[:MAX_PROBLEMS]) from None
    if problems := list(_contradictions(root, scenario)):
        raise ScenarioError(*problems[:MAX_PROBLEMS])
    return Loaded(scenario, root, folder)


def tenant_names(tenant: schema.Tenant) -> list[str]:
    """Return the names of a tenant's groups: its own, or numbered ones if there are several."""
    return [tenant.name] if tenant.count == 1 else [f"{tenant.name}-{number + 1}" for number in range(tenant.count)]


def located(root: Node, path: Sequence[str | int], problem: str) -> str:
    """Return one line with the origin, the field, its value and what was expected."""
    node = root.at(path)
    return f"{node.where}: {_dotted(path)}: {problem}"


def _empty(root: Node, node: Node, path: tuple[str | int, ...]) -> Iterator[str]:
    """Yield errors for empty fields. A change may have an empty `reservation` or `inversion`, which ends it."""
    if isinstance(node.value, dict):
        for name, below in node.value.items():
            yield from _empty(root, below, (*path, name))
    elif isinstance(node.value, list):
        for index, below in enumerate(node.value):
            yield from _empty(root, below, (*path, index))
    elif node.value is None and path and not (path[0] == "changes" and path[-1] in ("reservation", "inversion")):
        yield located(root, path, "nothing: expected a value")


def _problem(root: Node, detail: ErrorDetails) -> str:
    path = detail["loc"]
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        fields = list(_model_at(path[:-1]).model_fields)
        near = difflib.get_close_matches(str(path[-1]), fields, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return located(root, path, f"no such field{hint}; expected one of {', '.join(fields)}")
    if kind == "missing":
        return located(root, path, "is missing; expected it here")
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        expected = f"expected {words} {_bound(root, path, context[bound])}"
    elif kind == "literal_error":
        expected = f"expected {context['expected'].replace(chr(39), '')}"
    elif kind == "string_pattern_mismatch":
        expected = "expected 1 to 63 characters a-z, 0-9 and '-', '-' not first or last"
    elif kind in ("too_long", "string_too_long"):
        expected = f"expected at most {context['max_length']} of them"
    elif kind == "too_short":
        expected = f"expected at least {context['min_length']} of them"
    elif "expected" in context:
        expected = str(context["expected"])
    else:
        expected = _TYPES.get(kind, detail["msg"])
    return located(root, path, f"{_shown(root, path)}: {expected}")


def _contradictions(root: Node, scenario: schema.Scenario) -> Iterator[str]:
    """Yield errors for values that are valid alone but contradict one another."""
    yield from _of_the_whole(root, scenario)
    names: dict[str, int] = {}
    slices = 0
    for index, tenant in enumerate(scenario.tenants):
        path = ("tenants", index)
        slices += tenant.count * len(tenant.slices)
        for name in {tenant.name, *tenant_names(tenant)}:
            if name in names:
                yield located(root, (*path, "name"), f"{name!r}: expected a name that no other tenant has")
            names[name] = index
        yield from _of_a_tenant(root, path, tenant, scenario.duration)
    if slices > schema.MAX_SLICES:
        yield located(root, ("tenants",), f"{slices} slices in all: expected at most {schema.MAX_SLICES}")
    for index, change in enumerate(scenario.changes):
        path = ("changes", index)
        if change.tenant not in names:
            known = ", ".join(list(names)[:10])
            yield located(root, (*path, "tenant"), f"{change.tenant!r}: expected a tenant's name, one of {known}")
        if change.at >= scenario.duration:
            yield located(root, (*path, "at"), f"{_shown(root, (*path, 'at'))}: expected a time before the end")
    for index, target in enumerate(scenario.targets):
        path = ("targets", index)
        if target.tenant != "*" and target.tenant not in names:
            known = ", ".join(["*", *names][:10])
            yield located(root, (*path, "tenant"), f"{target.tenant!r}: expected a tenant's name, one of {known}")
        if not target.model_fields_set - {"tenant"}:
            yield located(root, path, "expected at least one target, like p99: 2ms")
        yield from _of_a_target(root, path, target, scenario.tenants)


def _of_a_target(
    root: Node, path: tuple[str | int, ...], target: schema.Target, tenants: Sequence[schema.Tenant]
) -> Iterator[str]:
    """Yield errors for targets that none of their tenants can have.

    Tenants without requests have no time of requests, and tenants with requests have no share error.
    """
    held = [tenant for tenant in tenants if target.tenant in ("*", tenant.name, *tenant_names(tenant))]
    of_requests = [not tenant.workload.always for tenant in held]
    for field in sorted(target.model_fields_set):
        if field in schema.OF_REQUESTS and held and not any(of_requests):
            who = "no tenant has requests" if target.tenant == "*" else f"{target.tenant} has no requests"
            yield located(root, (*path, field), f"{who}, it always has work; expected a share or share_error")
        if field == "share_error" and held and all(of_requests):
            who = "every tenant" if target.tenant == "*" else target.tenant
            yield located(
                root,
                (*path, field),
                f"{who} does not always have work; expected a tenant that does, or p99",
            )


def _of_the_whole(root: Node, scenario: schema.Scenario) -> Iterator[str]:
    if scenario.warm_up >= scenario.duration:
        yield located(root, ("warm_up",), f"{_shown(root, ('warm_up',))}: expected less than the duration")
    if scenario.engine.min_chunk > scenario.engine.max_chunk:
        yield located(root, ("engine", "min_chunk"), "expected at most max_chunk")
    if scenario.duration // scenario.window > MAX_WINDOWS:
        yield located(root, ("window",), f"expected at most {MAX_WINDOWS} windows in the duration")
    scheduler = scenario.scheduler
    if scheduler.name not in schema.CORE_SCHEDULERS:
        for field in sorted({"policy", "places", "reserve_limit"} & scheduler.model_fields_set):
            yield located(root, ("scheduler", field), f"expected it with scheduler vgpumgr only, not {scheduler.name}")
    elif (scheduler.policy == "fixed_share") != (scheduler.places is not None):
        yield located(root, ("scheduler",), "expected `places` with policy fixed_share, and only with it")


def _of_a_tenant(root: Node, path: tuple[str | int, ...], tenant: schema.Tenant, duration_ns: int) -> Iterator[str]:
    yield from _of_a_cap(root, path, tenant)
    for index, part in enumerate(tenant.slices):
        yield from _of_a_cap(root, (*path, "slices", index), part)
    if tenant.starts >= duration_ns:
        yield located(root, (*path, "starts"), "expected a time before the end")
    if tenant.leaves is not None and tenant.leaves <= tenant.starts:
        yield located(root, (*path, "leaves"), "expected a time after it starts")
    model = tenant.workload.model
    if model is not None and model not in MODELS:
        start = model.lower().replace("-", "")
        near = [known for known in MODELS if start and known.replace("-", "").startswith(start)]
        near = near or difflib.get_close_matches(model, MODELS, 1)
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        expected = f"{model[:80]!r}: no such model{hint}; expected one of {', '.join(MODELS)}"
        yield located(root, (*path, "workload", "model"), expected)


def _of_a_cap(root: Node, path: tuple[str | int, ...], part: schema.Tenant | schema.Slice) -> Iterator[str]:
    for field in ("cap_period", "burst"):
        if getattr(part, field) is not None and part.cap is None:
            yield located(root, (*path, field), "expected it beside `cap`")


def _shown(root: Node, path: Sequence[str | int]) -> str:
    """Return the value as it was written, on one line."""
    value = root.at(path).plain()
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "fields"
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)[:80]


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step[:80]}" if text else step[:80]
    return text or "scenario"


def _bound(root: Node, path: Sequence[str | int], value: float) -> str:
    """Return a bound in the unit of the value that it bounds."""
    written = root.at(path).plain()
    if isinstance(written, str) and written.endswith("%"):
        return format_percent(value / MILLION)
    if isinstance(written, str):
        return format_time(value)
    return f"{value:g}"


def _model_at(path: Sequence[Any]) -> type[BaseModel]:
    """Return the model of the schema at a path."""
    model: type[BaseModel] = schema.Scenario
    for step in path:
        if isinstance(step, str):
            model = next(iter(_models(model.model_fields[step].annotation)))
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
