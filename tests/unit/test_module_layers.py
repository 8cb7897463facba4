# SPDX-License-Identifier: Apache-2.0
"""A folder of the kernel module (kmod/README.md) uses only itself and the folders below it.

A lower folder reaches a higher one through a table of operations. It names nothing else of the higher folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

KMOD = Path(__file__).resolve().parents[2] / "kmod"
# From top to bottom; folders of one line may use each other.
ORDER = (
    ("migration", "function", "control"),
    ("engine",),
    ("sched",),
    ("uapi",),
)
BELOW = {
    folder: {name for folders in ORDER[at + 1 :] for name in folders} for at, of in enumerate(ORDER) for folder in of
}
TABLES = {"vgpu_reports"}

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^#include "(\w+)/', re.MULTILINE)
# In kernel style, only the start and the end of a function are at the left margin.
FUNCTION = re.compile(r"^(?!static\b)\w[^;{}=]*?\b(\w+)\([^;{}]*\)\n\{\n", re.MULTILINE)
OBJECT = re.compile(r"^(?!static\b|extern\b|struct \w+;)\w[\w *]*?\b(vgpu_\w+)(?:\[\])? = ", re.MULTILINE)

USED = re.compile(r"(?<!struct )\b\w+")


def sources(folder: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((KMOD / folder).rglob("*.[ch]")):
        yield path, COMMENT.sub("", path.read_text())


def defined(folder: str) -> set[str]:
    text = "\n".join(text for path, text in sources(folder) if path.suffix == ".c")
    return {*FUNCTION.findall(text), *OBJECT.findall(text)}


def above(folder: str) -> list[str]:
    """Return the folders above. Folders of the same line are neither above nor below."""
    at = next(at for at, of in enumerate(ORDER) if folder in of)
    return [name for of in ORDER[:at] for name in of]


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_includes_only_what_is_below_it(folder: str) -> None:
    beside = next(of for of in ORDER if folder in of)
    found = {(path.name, into) for path, text in sources(folder) for into in INCLUDE.findall(text)}
    wrong = {(name, into) for name, into in found if into in BELOW and into not in BELOW[folder] and into not in beside}
    assert wrong == set()


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_names_nothing_that_is_defined_above_it(folder: str) -> None:
    """This includes names that it gets from a header which belongs to no folder."""
    names = {name for upper in above(folder) for name in defined(upper)} - TABLES
    wrong = {(path.name, word) for path, text in sources(folder) for word in USED.findall(text) if word in names}
    assert wrong == set()


def test_what_is_defined_is_found() -> None:
    """Both kinds of definitions must be found; otherwise the test above means nothing."""
    assert {"vgpu_device_raise", "vgpu_mdev_driver"} <= defined("function")
    assert {"vgpu_device_fault", "vgpu_reports"} <= defined("control")
