# SPDX-License-Identifier: Apache-2.0
"""Writes measured figures into docs/benchmarks.md, and all tables of an experiment into docs/benchmarks/EXPERIMENT.md.

    python -m tests.bench.sched.page [build/bench/sched.json | build/bench/kmod.json]

Between the marks of each experiment's section, the page gets what a reader needs for a judgement: the model, the
baselines, the targets, and where others do better. The overview is computed from these sections. Sections of
experiments that are not in the file stay as they are, and so does all text outside the marks.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.bench.sched.__main__ import FORMAT, OUTPUT, ROOT
from tests.bench.sched.result import table_lines

PAGE = ROOT / "docs" / "benchmarks.md"
TABLES = PAGE.with_suffix("")


def section(name: str, result: dict[str, Any]) -> str:
    """Return the text of an experiment's section."""
    return "\n\n".join(
        [
            f"`{_command(name, result)}`: [all tables]({TABLES.name}/{name}.md).",
            f"- Model: {result['model']}.\n- Baselines: {', '.join(result['baselines'])}.",
            _table(["target", "wanted", "measured", ""], [_target(one) for one in result["targets"]]),
            "\n".join(f"- Losing: {loss}." for loss in result["losing"]),
        ]
    )


def tables(name: str, result: dict[str, Any], document: dict[str, Any]) -> str:
    """Return the page with all figures of an experiment, and with the run that produced them."""
    machine = document["machine"]
    hashes = ", ".join(f"{what} `{value}`" for what, value in result["hashes"].items())
    parts = [
        f"# Tables of `{name}`",
        f"[benchmarks.md](../{PAGE.name}) says what they mean. `python -m tests.bench.sched.page` writes this page.",
        (
            f"`{_command(name, result)}`, {result['seconds']:.0f} s at commit `{document['commit']}` on"
            f" {machine['processors']} x {machine['processor']}, {machine['compiler']}, Python {machine['python']},"
            f" load {machine['load']}."
        ),
        f"Seeds: {result['seeds']}. Hashes: {hashes}.",
    ]
    for title, rows in result["figures"].items():
        head, *lines = table_lines(title, rows)
        parts.append(f"## {title}\n\n{_table(['', *head[1:]], lines)}")
    return "\n\n".join(parts) + "\n"


def _command(name: str, result: dict[str, Any]) -> str:
    return str(result.get("command", f"make bench-sched BENCH='--only {name}'"))


def _target(one: dict[str, Any]) -> list[str]:
    return [one["what"], one["wanted"], f"{one['value']:g}", "met" if one["met"] else "**missed**"]


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)


def marks(name: str) -> tuple[str, str]:
    return f"<!-- figures: {name} -->", f"<!-- end of {name} -->"


def filled(page: str, document: dict[str, Any]) -> str:
    """Return the page with the figures of all experiments in the document. Raises KeyError if one has no section."""
    for name, result in document["experiments"].items():
        page = _between(page, name, section(name, result))
    return _between(page, "overview", overview(page))


def _between(page: str, name: str, text: str) -> str:
    begin, end = marks(name)
    if begin not in page or end not in page:
        raise KeyError(f"{PAGE.name} has no section with the marks {begin} and {end}")
    whole = re.escape(begin) + ".*?" + re.escape(end)
    return re.sub(whole, lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


def overview(page: str) -> str:
    """Return how many targets each section of the page meets, and which it misses."""
    lines = []
    for title, text in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", page, flags=re.DOTALL | re.MULTILINE):
        rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (met|\*\*missed\*\*) \|$", text, flags=re.MULTILINE)
        if rows:
            missed = [f"{what}: {value} ({wanted})" for what, wanted, value, verdict in rows if verdict != "met"]
            anchor = title.lower().replace(" ", "-").replace(",", "")
            lines.append([f"[{title}](#{anchor})", f"{len(rows) - len(missed)} of {len(rows)}", "; ".join(missed)])
    return _table(["section", "targets met", "missed (wanted)"], lines)


def main(path: Path) -> None:
    document = json.loads(path.read_text())
    if document["format"] != FORMAT or document["quick"]:
        sys.exit(f"{path}: wanted {FORMAT} of a whole run; make it with `make bench-sched`")
    PAGE.write_text(filled(PAGE.read_text(), document))
    for name, result in document["experiments"].items():
        (TABLES / f"{name}.md").write_text(tables(name, result, document))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
