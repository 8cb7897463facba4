# SPDX-License-Identifier: Apache-2.0
"""The engine and all schedulers under random changes, built with the sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vgpumgr.sim._build import CORE_BUILD, NATIVE, ROOT

DRIVER = Path(__file__).with_name("random_simulations.c")


@pytest.fixture(scope="module")
def random_simulations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sanitized") / "random_simulations"
    core = ROOT / CORE_BUILD["CORE"]
    command = [
        os.environ.get("CC", "cc"),
        *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror"),
        *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        *("-I", str(core), "-I", str(ROOT / NATIVE), "-o", str(program), str(DRIVER)),
        *(str(path) for path in sorted((ROOT / NATIVE).glob("*.c"))),
        *(str(core / name) for name in CORE_BUILD["SOURCES"]),
    ]
    subprocess.run(command, check=True)
    return program


def run(program: Path, seed: int, simulations: int) -> None:
    done = subprocess.run([program, str(seed), str(simulations)], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("seed", range(1, 4))
def test_random_changes_break_nothing(random_simulations: Path, seed: int) -> None:
    run(random_simulations, seed, 4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_very_many_random_changes_break_nothing(random_simulations: Path, seed: int) -> None:
    run(random_simulations, seed, 100)
