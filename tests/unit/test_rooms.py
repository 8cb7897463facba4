# SPDX-License-Identifier: Apache-2.0
"""Which rooms of the kernel module (kmod/README.md) may use which: each only those below it, and the files beside them.

What is below reaches what is above through a table of operations, of which it names nothing but the table itself.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

KMOD = Path(__file__).resolve().parents[2] / "kmod"
# From above to below; those of one line use each other.
ORDER = (
    ("migration", "function", "control"),
    ("engine",),
    ("sched",),
    ("uapi",),
)
BELOW = {room: {name for rooms in ORDER[at + 1 :] for name in rooms} for at, of in enumerate(ORDER) for room in of}
TABLES = {"vgpu_reports"}

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^#include "(\w+)/', re.MULTILINE)
# In the kernel's style nothing inside a function begins at the left.
FUNCTION = re.compile(r"^(?!static\b)\w[^;{}=]*?\b(\w+)\([^;{}]*\)\n\{\n", re.MULTILINE)
OBJECT = re.compile(r"^(?!static\b|extern\b|struct \w+;)\w[\w *]*?\b(vgpu_\w+)(?:\[\])? = ", re.MULTILINE)

USED = re.compile(r"(?<!struct )\b\w+")


def sources(room: str) -> Iterator[tuple[Path, str]]:
    for path in sorted((KMOD / room).rglob("*.[ch]")):
        yield path, COMMENT.sub("", path.read_text())


def defined(room: str) -> set[str]:
    text = "\n".join(text for path, text in sources(room) if path.suffix == ".c")
    return {*FUNCTION.findall(text), *OBJECT.findall(text)}


def above(room: str) -> list[str]:
    """Of one line, all others are neither above nor below."""
    at = next(at for at, of in enumerate(ORDER) if room in of)
    return [name for of in ORDER[:at] for name in of]


@pytest.mark.parametrize("room", BELOW)
def test_a_room_includes_only_what_is_below_it(room: str) -> None:
    beside = next(of for of in ORDER if room in of)
    found = {(path.name, into) for path, text in sources(room) for into in INCLUDE.findall(text)}
    wrong = {(name, into) for name, into in found if into in BELOW and into not in BELOW[room] and into not in beside}
    assert wrong == set()


@pytest.mark.parametrize("room", BELOW)
def test_a_room_names_nothing_that_is_defined_above_it(room: str) -> None:
    """Also what a header tells it that belongs to no room."""
    names = {name for upper in above(room) for name in defined(upper)} - TABLES
    wrong = {(path.name, word) for path, text in sources(room) for word in USED.findall(text) if word in names}
    assert wrong == set()


def test_what_is_defined_is_found() -> None:
    """Of both kinds, for the test above to mean something."""
    assert {"vgpu_device_raise", "vgpu_mdev_driver"} <= defined("function")
    assert {"vgpu_device_fault", "vgpu_reports"} <= defined("control")
