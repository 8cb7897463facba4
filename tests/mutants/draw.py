# SPDX-License-Identifier: Apache-2.0
"""Draws mutants: copies of our sources with one small defect each.

A mutant changes one line: a comparison, a logical operator, a number, a condition, or a statement that is removed. In
Python the places come from the syntax tree. In C they come from the text of a line, because a mutant that does not
compile shows nothing.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

AREAS: dict[str, tuple[str, ...]] = {
    "module": ("kmod/*.c", *(f"kmod/{room}/*.c" for room in ("control", "engine", "function", "migration"))),
    "scheduler": ("kmod/sched/*.c",),
    "agent": ("agent/vgpumgr_agent/**/*.py",),
    "api": ("api/vgpumgr_api/**/*.py",),
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """In one line, counted from 1, `old` becomes `new`; both are whole lines without line ends."""

    area: str
    path: str
    line: int
    kind: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Change the file below `root`. Raises ValueError if its line differs from `old`."""
        file = root / self.path
        lines = file.read_text().splitlines(keepends=True)
        if lines[self.line - 1].rstrip("\n") != self.old:
            raise ValueError(f"{self.path}:{self.line} is not what was drawn")
        lines[self.line - 1] = self.new + "\n"
        file.write_text("".join(lines))


COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
_C_COMPARISON = re.compile(r" (<=|>=|==|!=|<|>) ")
_C_LOGIC = re.compile(r" (&&|\|\|) ")
_C_NUMBER = re.compile(r"(?<![\w.\"%])(\d+)(?=[;,) ])")
_C_CONDITION = re.compile(r"^(\s+(?:\} else )?if \()(.*)(\)(?: \{)?)$")
_C_STATEMENT = re.compile(r"^(\s+)(?!return\b|goto\b|break\b|continue\b|const\b|static\b|case\b|struct\b|unsigned\b)"
                          r"[\w>.\-\[\]]+(?:\(.*\)| [-+|&]?= .*)(?:\+\+|--)?;$")  # fmt: skip


def draw(root: Path, area: str, count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants of an area. All changes have equal chances; the same seed and tree give the same mutants."""
    found = [mutant for path in sources(root, area) for mutant in candidates(root, area, path)]
    return random.Random(f"{seed}-{area}").sample(found, count)


def sources(root: Path, area: str) -> Sequence[Path]:
    """Return the files from which an area's mutants are drawn."""
    return sorted(path for pattern in AREAS[area] for path in root.glob(pattern) if path.name != "__init__.py")


def candidates(root: Path, area: str, path: Path) -> Iterator[Mutant]:
    """Yield each useful change of each line of a file."""
    text = path.read_text()
    lines = text.splitlines()
    changes = _of_python(text, lines) if path.suffix == ".py" else _of_c(lines)
    for number, kind, new in changes:
        yield Mutant(
            area=area, path=str(path.relative_to(root)), line=number, kind=kind, old=lines[number - 1], new=new
        )


def _of_c(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    in_comment = False
    for number, line in enumerate(lines, 1):
        in_comment = in_comment or "/*" in line
        if in_comment:
            in_comment = "*/" not in line
            continue
        if not line.startswith("\t") or "MODULE_" in line or '"' in line:
            continue
        for kind, pattern, change in _C_CHANGES:
            for match in pattern.finditer(line):
                yield number, kind, line[: match.start()] + change(match) + line[match.end() :]


_C_CHANGES: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    ("comparison", _C_COMPARISON, lambda found: f" {COMPARISONS[found[1]]} "),
    ("logic", _C_LOGIC, lambda found: " || " if found[1] == "&&" else " && "),
    ("number", _C_NUMBER, lambda found: str(int(found[1]) + 1)),
    ("condition", _C_CONDITION, lambda found: f"{found[1]}!({found[2]}){found[3]}"),
    ("statement", _C_STATEMENT, lambda found: f"{found[1]};"),
)

_PYTHON_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip


def _of_python(text: str, lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield from _between(
                lines, "comparison", node.left, node.comparators[0], *_PYTHON_COMPARISONS[type(node.ops[0])]
            )
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from _between(lines, "logic", node.values[0], node.values[1], *words)
        elif isinstance(node, ast.Constant) and type(node.value) is int and _is_whole(node):
            yield node.lineno, "number", _with(lines, node, str(node.value + 1))
        elif isinstance(node, ast.If | ast.While) and _is_whole(node.test):
            old = lines[node.test.lineno - 1][node.test.col_offset : node.test.end_col_offset]
            yield node.test.lineno, "condition", _with(lines, node.test, f"not ({old})")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_whole(node):
            yield node.lineno, "statement", _with(lines, node, "pass")


def _is_whole(node: ast.expr | ast.stmt) -> bool:
    return node.lineno == node.end_lineno


def _with(lines: Sequence[str], node: ast.expr | ast.stmt, new: str) -> str:
    line = lines[node.lineno - 1].encode()
    return (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()


def _between(
    lines: Sequence[str], kind: str, left: ast.expr, right: ast.expr, old: str, new: str
) -> Iterator[tuple[int, str, str]]:
    """Replace the operator between two operands in one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    line = lines[right.lineno - 1].encode()
    middle = line[left.end_col_offset : right.col_offset].decode()
    if middle.count(old) == 1:
        changed = line[: left.end_col_offset] + middle.replace(old, new).encode() + line[right.col_offset :]
        yield right.lineno, kind, changed.decode()
