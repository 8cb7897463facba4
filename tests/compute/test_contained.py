# SPDX-License-Identifier: Apache-2.0
"""A contained process cannot enter processes that others start. Everything else that was allowed remains allowed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import COMPUTE, build

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="others may not trace and mount anyway")

OWN = ["own-memory", "pipe", "rename", "link"]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(__file__).with_name("c") / "contained_attempts.c"
    return build(tmp_path_factory.mktemp("c") / "attempts", source, COMPUTE / "native/contained.c")


@pytest.fixture
def victim() -> Iterator[int]:
    """A process in the state of a launcher that has no fence yet."""
    with subprocess.Popen(["sleep", "infinity"]) as process:
        yield process.pid
        process.kill()


def achieved(attempts: Path, victim: int, folder: Path, *how: str) -> list[str]:
    # The attempts run in their own mount namespace, so no mount remains.
    command = ["unshare", "--mount", str(attempts), str(victim), str(folder), *how]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_a_contained_process_gets_into_no_other_and_makes_no_mount_and_no_device(
    attempts: Path, victim: int, tmp_path: Path
) -> None:
    assert achieved(attempts, victim, tmp_path, "contained") == OWN


def test_the_same_process_does_all_of_it_uncontained(attempts: Path, victim: int, tmp_path: Path) -> None:
    before, after = ["memory", "trace", "mount", "unmount", "own-memory", "device"], OWN[1:]
    assert achieved(attempts, victim, tmp_path) == [*before, *after]
