# SPDX-License-Identifier: Apache-2.0
"""The input of a guest or its VMM, given to the module's own files in a process, under sanitizers.

`fuzz_item.c` and `fuzz_device.c` describe the checks, and `fuzz_dump.c` those of the operator's lists. Random bytes and
the committed inputs run here; ten million cases and libFuzzer run in the long lane.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tests.kfuzz.build import HERE, build

ITEM = ("fuzz_item", "descriptor", "kernel", "files", "threads")
DUMP = ("fuzz_dump", "kernel", "files", "threads")
DEVICE = ("fuzz_device", "slices", "bound", "leases", "vmm", "migrate", "guest")
DEVICE += ("descriptor", "kernel", "files", "threads")
CASES_LONG = 10_000_000
LIBFUZZER_S = 300

# enum vgpu_error: the reasons for refusing descriptors and for stopping slices.
OF_DESCRIPTORS = (5, 6, 7, 8)
OF_SLICES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kfuzz")


@pytest.fixture(scope="session")
def fuzz_item(folder: Path) -> Path:
    return build(folder, ITEM, module=("engine/item",))


@pytest.fixture(scope="session")
def fuzz_device(folder: Path) -> Path:
    return build(folder, DEVICE)


def run(program: Path, *arguments: object) -> dict[str, object]:
    """Run the program, which must succeed; returns its counters."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-6000:]}"
    counted = json.loads(done.stdout)
    assert isinstance(counted, dict)
    return counted


def items(program: Path, *, seed: int, cases: int) -> None:
    counted = run(program, seed, cases)
    refused = counted["refused"]
    assert isinstance(refused, list)
    assert counted["accepted"]
    assert [error for error, count in enumerate(refused) if count] == list(OF_DESCRIPTORS)


def devices(program: Path, *, seed: int, steps: int) -> None:
    """Everything that can happen did happen: code that is never reached is not tested."""
    counted = run(program, seed, steps)
    faults = counted.pop("faults")
    assert isinstance(faults, list)
    assert not [error for error in OF_SLICES if not faults[error]]
    assert not [name for name, count in counted.items() if not count]


@pytest.mark.parametrize("seed", [1, 2])
def test_descriptors_are_what_the_document_allows(fuzz_item: Path, seed: int) -> None:
    items(fuzz_item, seed=seed, cases=500_000)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        (1_000_000, 60_000),
        pytest.param(1_000_000, 150_000, marks=pytest.mark.long),
        pytest.param(2_000_000, 150_000, marks=pytest.mark.long),
    ],
)
def test_nothing_a_guest_does_leads_beyond_its_slice(fuzz_device: Path, seed: int, steps: int) -> None:
    devices(fuzz_device, seed=seed, steps=steps)


def test_lists_say_whether_anything_changed_meanwhile(folder: Path) -> None:
    counted = run(build(folder, DUMP, module=("control/netlink_dump", "control/parents")), 1, 200_000)
    assert not [name for name, count in counted.items() if not count]


def corpus(folder: Path) -> list[Path]:
    """The committed inputs, one file each."""
    folder.mkdir()
    paths = []
    for number, line in enumerate((HERE / "corpus.txt").read_text().splitlines()):
        paths.append(folder / f"{number:04}")
        paths[-1].write_bytes(base64.b64decode(line))
    return paths


def test_what_was_interesting_before_is_harmless(fuzz_device: Path, tmp_path: Path) -> None:
    """Inputs that libFuzzer chose because each reaches other code."""
    paths = corpus(tmp_path / "corpus")
    assert len(paths) > 100
    done = subprocess.run([fuzz_device, "--", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.long
def test_ten_million_descriptors(fuzz_item: Path) -> None:
    items(fuzz_item, seed=10_000_000, cases=CASES_LONG)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_ten_million_steps_of_guests(fuzz_device: Path, seed: int) -> None:
    devices(fuzz_device, seed=seed << 32, steps=CASES_LONG // 10)


@pytest.mark.long
def test_libfuzzer_finds_nothing(folder: Path, tmp_path: Path) -> None:
    program = build(folder, DEVICE, compiler="clang")
    corpus(tmp_path / "corpus")
    limits = ("-max_len=4096", f"-max_total_time={LIBFUZZER_S}", f"-artifact_prefix={tmp_path}/")
    command = [str(program), *limits, str(tmp_path / "corpus")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"input in {tmp_path}: {done.stderr[-6000:]}"
