# SPDX-License-Identifier: Apache-2.0
"""Policies decide only from their arguments: no clock, no I/O, and only the standard library."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import vgpumgr.policy

FILES = sorted(Path(vgpumgr.policy.__path__[0]).glob("*.py"))
WORLD = {"asyncio", "datetime", "io", "os", "pathlib", "random", "socket", "subprocess", "threading", "time"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_policy_imports_nothing_but_values(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            pure = name.startswith("vgpumgr.policy.") or name == "vgpumgr.ranges"
            allowed = (top in sys.stdlib_module_names and top not in WORLD) or pure
            assert allowed, f"{path.name} imports {name}"


def test_there_are_policies() -> None:
    assert {"edf", "job_order", "lanes", "request_limit", "reserve_controller", "soft_limit"} <= {
        path.stem for path in FILES
    }
