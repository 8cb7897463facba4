# SPDX-License-Identifier: Apache-2.0
"""The figures that tests measure, beside the figures they are compared with: printed at the end, kept in
build/figures/.

A conftest.py gets them by importing `figures`, `pytest_terminal_summary` and `pytest_configure`.
"""

import json
import platform
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.terminal import TerminalReporter

DIRECTORY = Path("build/figures")
_KEY = pytest.StashKey[list[dict[str, object]]]()


class Record(Protocol):
    """`record("share of blue", 0.7501, against=0.75, unit="of the engine")`."""

    def __call__(self, name: str, measured: float, *, against: float, unit: str) -> None: ...


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = []


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Record:
    def record(name: str, measured: float, *, against: float, unit: str) -> None:
        figure = {"test": request.node.name, "figure": name, "measured": measured, "against": against, "unit": unit}
        request.config.stash[_KEY].append(figure)

    return record


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    found = config.stash[_KEY]
    if not found:
        return
    terminalreporter.section("figures")
    for figure in found:
        terminalreporter.write_line(
            f"{figure['figure']}: {figure['measured']:.6g} against {figure['against']:.6g} {figure['unit']}"
        )
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    # for a single test: its own name
    name = config.rootpath.joinpath(config.args[0]).name.rpartition(":")[2]
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps({"kernel": platform.release(), "figures": found}, indent=2) + "\n")
