# SPDX-License-Identifier: Apache-2.0
"""The core under random calls, built with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vgpumgr.sched._build import CORE, ROOT, SOURCES

DRIVER = Path(__file__).with_name("random_events.c")


@pytest.fixture(scope="module")
def random_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sanitized") / "random_events"
    command = [
        os.environ.get("CC", "cc"),
        *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        *("-I", str(ROOT / CORE), "-o", str(program), str(DRIVER)),
        *(str(ROOT / CORE / name) for name in SOURCES),
    ]
    subprocess.run(command, check=True)
    return program


def run(program: Path, seed: int, calls: int) -> None:
    done = subprocess.run([program, str(seed), str(calls)], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"


@pytest.mark.parametrize("seed", range(1, 9))
def test_random_calls_break_nothing(random_events: Path, seed: int) -> None:
    run(random_events, seed, 100_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_very_many_random_calls_break_nothing(random_events: Path, seed: int) -> None:
    run(random_events, seed, 2_000_000)
