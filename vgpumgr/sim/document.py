# SPDX-License-Identifier: Apache-2.0
"""YAML as a tree that keeps each value's position, for errors that name file, line and field.

A strict subset of YAML: no anchors, aliases, tags, merges or repeated keys, and one document. Plain scalars are text,
except whole and decimal numbers, true, false and null. So a document cannot expand when it is read, and `no` or `1:30`
mean what they look like. Size and depth are bounded.
"""

import copy
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from vgpumgr.errors import ScenarioError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_NODES = 50_000
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}
_MISSING = "is a line missing above it, like `tenants:`, or is it indented otherwise?"
_MISPLACED = {
    "expected <block end>": f"this line does not belong to the one above it; {_MISSING}",
    "mapping values are not allowed here": f"quote a value that has `: ` in it; {_MISSING}",
}
_STEP = re.compile(r"([A-Za-z0-9_-]+|\*)((?:\[[0-9]{1,6}\])*)", re.ASCII)

Scalar = str | int | float | bool | None
Plain = Scalar | dict[str, "Plain"] | list["Plain"]


@dataclass
class Node:
    """A value and its origin: ``file:line``, or the option that set it."""

    value: "Scalar | dict[str, Node] | list[Node]"
    where: str

    def plain(self) -> Plain:
        """Return the value as dictionaries, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: part.plain() for key, part in self.value.items()}
        if isinstance(self.value, list):
            return [part.plain() for part in self.value]
        return self.value

    def at(self, path: Iterable[str | int]) -> "Node":
        """Return the node at a path, or the last node on the path that exists."""
        node = self
        for step in path:
            below: Node | None = None
            if isinstance(node.value, dict) and isinstance(step, str):
                below = node.value.get(step)
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                below = node.value[step]
            if below is None:
                break
            node = below
        return node


def read_limited(path: Path, *, limit_bytes: int, what: str) -> str:
    """Return a file's text. ScenarioError if it is unreadable, not UTF-8 or larger than the limit."""
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {(error.strerror or str(error)).lower()}; give {what}") from None
    if len(data) > limit_bytes:
        raise ScenarioError(f"{path}: expected {what} of at most {limit_bytes} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ScenarioError(f"{path}:{line}: expected UTF-8 text, found byte 0x{data[error.start]:02x}") from None


def parse(text: str, name: str) -> Node:
    """Return the tree of one YAML document. `name`: the file, for errors. ScenarioError."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ScenarioError(f"{name}: expected at most {MAX_BYTES} bytes")
    try:
        return _Builder(text, name).document()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or "this is not YAML"
        said = next((words for start, words in _MISPLACED.items() if problem.startswith(start)), None)
        raise ScenarioError(f"{name}:{line}: {said or f'{problem}; expected YAML'}") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        raise ScenarioError(f"{name}: {str(error).splitlines()[0]}; expected YAML") from None


def parse_value(text: str, where: str) -> Node:
    """Return the tree of a value from the command line. All of its nodes get the origin `where`. ScenarioError."""
    node = parse(text, where)
    for part in _all(node):
        part.where = where
    return node


def assign(root: Node, path: str, value: Node) -> None:
    """Put a value at a path like ``tenants.blue.weight``, ``tenants[0].weight`` or ``tenants.*.weight``.

    Members of a list can also be named by their `name`. A missing field is created, a missing member of a list is not.
    ScenarioError.
    """
    steps = _steps(path, value.where)
    targets = [root]
    for step in steps[:-1]:
        targets = _reached(targets, step, Node({}, value.where))
    last = steps[-1]
    for target in targets:
        if isinstance(target.value, dict) and last != "*":
            target.value[str(last)] = copy.deepcopy(value)
            continue
        for node in _reached([target], last, value):
            node.value, node.where = copy.deepcopy(value.value), value.where


def _reached(nodes: list[Node], step: str | int, made: Node) -> list[Node]:
    """Return all nodes that a step reaches from these nodes. A missing field is created as a copy of `made`."""
    for node in nodes:
        if isinstance(node.value, dict) and isinstance(step, str) and step != "*" and step not in node.value:
            node.value[step] = copy.deepcopy(made)
    found = [below for node in nodes for below in _below(node, step)]
    if not found:
        named = [str(name) for node in nodes for part in _below(node, "*") if (name := _name(part)) is not None]
        known = f"one of {', '.join(named[:10])}" if named else f"the path of a field, {_EXAMPLES}"
        raise ScenarioError(f"{made.where}: {str(step)[:80]!r} does not exist; expected {known}")
    return found


_EXAMPLES = "like tenants.blue.weight, tenants.*.timeslice or scheduler.name"


def _steps(path: str, where: str) -> list[str | int]:
    steps: list[str | int] = []
    for part in path.split("."):
        match = _STEP.fullmatch(part)
        if match is None:
            raise ScenarioError(f"{where}: {path[:80]!r} is not the path of a field; expected one {_EXAMPLES}")
        steps.append(match[1])
        steps += [int(index) for index in re.findall(r"[0-9]+", match[2])]
    return steps


def _below(node: Node, step: str | int) -> Iterator[Node]:
    if isinstance(node.value, dict):
        if step == "*":
            yield from node.value.values()
        elif isinstance(step, str) and step in node.value:
            yield node.value[step]
    elif isinstance(node.value, list):
        if step == "*":
            yield from node.value
        elif isinstance(step, int) and step < len(node.value):
            yield node.value[step]
        elif isinstance(step, str):
            yield from (part for part in node.value if _name(part) == step)


def _name(node: Node) -> Scalar:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return name.value if name and not isinstance(name.value, dict | list) else None


def _all(node: Node) -> Iterator[Node]:
    yield node
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    for part in below:
        yield from _all(part)


class _Builder:
    """Builds a tree from YAML's events. Each text needs a new object."""

    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._nodes = 0
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)

    def document(self) -> Node:
        root: Node | None = None
        for event in self._events:
            if isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent):
                continue
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    raise self._error(event, "expected one document, found a second `---`")
                continue
            root = self._node(event, depth=0)
        return root or Node(None, f"{self._name}:1")

    def _node(self, event: yaml.Event, depth: int) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._error(event, f"expected at most {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise self._error(event, f"expected at most {MAX_DEPTH} levels")
        self._refuse_extras(event)
        where = self._where(event)
        if isinstance(event, yaml.ScalarEvent):
            return Node(_scalar(event), where)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(self._sequence(depth), where)
        return Node(self._mapping(depth), where)

    def _sequence(self, depth: int) -> list[Node]:
        parts: list[Node] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            parts.append(self._node(event, depth + 1))
        return parts

    def _mapping(self, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            self._refuse_extras(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error(event, "expected a field's name")
            if event.value in members:
                raise self._error(event, f"field {event.value[:80]!r} is given twice; expected it once")
            members[event.value] = self._node(next(self._events), depth + 1)
        return members

    def _refuse_extras(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            raise self._error(event, "aliases are not accepted; expected the value itself")
        if getattr(event, "anchor", None) is not None:
            raise self._error(event, "anchors are not accepted; expected the value itself")
        if getattr(event, "tag", None) is not None:
            raise self._error(event, "tags are not accepted; expected a plain value")

    def _where(self, event: yaml.Event) -> str:
        return f"{self._name}:{event.start_mark.line + 1 if event.start_mark else 1}"

    def _error(self, event: yaml.Event, problem: str) -> ScenarioError:
        return ScenarioError(f"{self._where(event)}: {problem}")


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    text: str = event.value
    if event.style is not None:  # a quoted or block scalar is always text
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
