# SPDX-License-Identifier: Apache-2.0
"""Temporary copies of a checkout that can be changed."""

import shutil
from pathlib import Path


def copy_sources(tree: Path, copy: Path) -> None:
    """Copy a checkout without build products, but with the tools that its tests start."""

    def unwanted(folder: str, names: list[str]) -> set[str]:
        return {"__pycache__", *(["build"] if Path(folder) == tree else [])} & set(names)

    shutil.copytree(tree, copy, ignore=unwanted, symlinks=True)
    tools = tree / "build/promtool"
    if tools.exists():
        (copy / "build").mkdir()
        (copy / "build/promtool").symlink_to(tools)
