# SPDX-License-Identifier: Apache-2.0
"""Bytes become calls of the core's whole interface, under the address and undefined-behaviour sanitizers.

`fuzz_events.c` describes the checks. Random bytes run here, libFuzzer's in the long lane.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from vgpumgr.sched._build import CORE, ROOT, SOURCES

DRIVER = Path(__file__).with_name("fuzz_events.c")
FUZZ_S = 300


def build(compiler: str, program: Path, *, sanitizers: str, options: tuple[str, ...] = ()) -> Path:
    command = [
        compiler,
        *("-std=gnu11", "-g", "-O1", *options),
        *(f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"),
        *("-I", str(ROOT / CORE), "-o", str(program), str(DRIVER)),
        *(str(ROOT / CORE / name) for name in SOURCES),
    ]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="module")
def random_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("random") / "fuzz_events"
    return build(os.environ.get("CC", "cc"), program, sanitizers="address,undefined")


def run(program: Path, seed: int, size: int) -> None:
    done = subprocess.run([program, str(seed), str(size)], capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"


@pytest.mark.parametrize("seed", range(11, 21))
def test_random_calls_break_nothing(random_calls: Path, seed: int) -> None:
    run(random_calls, seed, 1_000_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_very_many_random_calls_break_nothing(random_calls: Path, seed: int) -> None:
    run(random_calls, seed, 20_000_000)


@pytest.mark.long
def test_libfuzzer_finds_nothing(tmp_path: Path) -> None:
    program = build("clang", tmp_path / "fuzz", sanitizers="fuzzer,address,undefined", options=("-DLIBFUZZER",))
    (tmp_path / "corpus").mkdir()
    limits = ("-max_len=8192", f"-max_total_time={FUZZ_S}", f"-artifact_prefix={tmp_path}/")
    done = subprocess.run([program, *limits, tmp_path / "corpus"], capture_output=True, text=True)
    assert done.returncode == 0, f"input in {tmp_path}: {done.stderr[-4000:]}"
