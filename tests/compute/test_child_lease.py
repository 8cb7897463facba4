# SPDX-License-Identifier: Apache-2.0
"""The child's lease machine with an arbiter, in every order of their accesses to the shared pages."""

import subprocess
from pathlib import Path

import pytest

from tests.compute.executor_rig import COMPUTE, ROOT, build


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        tmp_path_factory.mktemp("lease") / "lease_model",
        ROOT / "tests" / "compute" / "lease_model.c",
        COMPUTE / "executor" / "child" / "lease_client.c",
    )


def play(model: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([model, *words], capture_output=True, text=True)


def test_no_order_of_accesses_breaks_a_rule(model: Path) -> None:
    played = play(model, "2")
    assert played.returncode == 0, played.stdout
    assert int(played.stdout.split()[0]) > 500_000


@pytest.mark.long
def test_no_order_over_three_leases_breaks_a_rule(model: Path) -> None:
    played = play(model, "3")
    assert played.returncode == 0, played.stdout


@pytest.mark.parametrize(
    ("defect", "rule"),
    [
        ("no-child-barrier", "taken back from a child at work"),
        ("no-arbiter-barrier", "work is queued under a lease, and the child sleeps"),
        ("forget-want", "the arbiter does not know"),
    ],
)
def test_the_model_finds_a_side_that_breaks_the_protocol(model: Path, defect: str, rule: str) -> None:
    played = play(model, "2", defect)
    assert played.returncode == 1
    assert rule in played.stdout
