# SPDX-License-Identifier: Apache-2.0
"""Puts measured figures into docs/benchmarks.md, between the marks of each experiment's section.

    python -m tests.bench.sched.page [build/bench/sched.json | build/bench/kmod.json]

Sections of experiments that the file does not have stay as they are; so do all words outside the marks.
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


def section(name: str, result: dict[str, Any], document: dict[str, Any]) -> str:
    machine = document["machine"]
    command = result.get("command", f"make bench-sched BENCH='--only {name}'")
    hashes = ", ".join(f"{what} `{value}`" for what, value in result["hashes"].items())
    parts = [
        (
            f"`{command}`, {result['seconds']:.0f} s at commit `{document['commit']}` on"
            f" {machine['processors']} x {machine['processor']}, {machine['compiler']}, Python {machine['python']},"
            f" load {machine['load']}."
        ),
        (
            f"- Model: {result['model']}.\n- Seeds: {result['seeds']}. Hashes: {hashes}.\n"
            f"- Baselines: {', '.join(result['baselines'])}."
        ),
        _table(["target", "wanted", "measured", ""], [_target(one) for one in result["targets"]]),
        "\n".join(f"- Losing: {loss}." for loss in result["losing"]),
    ]
    for title, rows in result["figures"].items():
        head, *lines = table_lines(title, rows)
        parts.append(f"<details><summary>{title}</summary>\n\n{_table(['', *head[1:]], lines)}\n\n</details>")
    return "\n\n".join(parts)


def _target(one: dict[str, Any]) -> list[str]:
    return [one["what"], one["wanted"], f"{one['value']:g}", "met" if one["met"] else "**missed**"]


def _table(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)


def marks(name: str) -> tuple[str, str]:
    return f"<!-- figures: {name} -->", f"<!-- end of {name} -->"


def filled(page: str, document: dict[str, Any]) -> str:
    """The page with the figures of all experiments in the document; KeyError if one has no section."""
    for name, result in document["experiments"].items():
        begin, end = marks(name)
        if begin not in page or end not in page:
            raise KeyError(f"{PAGE.name} has no section with the marks {begin} and {end}")
        text = f"{begin}\n{section(name, result, document)}\n{end}"
        page = re.sub(re.escape(begin) + ".*?" + re.escape(end), lambda _, text=text: text, page, flags=re.DOTALL)
    return page


def main(path: Path) -> None:
    document = json.loads(path.read_text())
    if document["format"] != FORMAT or document["quick"]:
        sys.exit(f"{path}: wanted {FORMAT} of a whole run; make it with `make bench-sched`")
    PAGE.write_text(filled(PAGE.read_text(), document))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
