# SPDX-License-Identifier: Apache-2.0
"""The cost of a decision does not grow. It is counted in instructions, which are the same on every run."""

from pathlib import Path

import pytest

from tests.bench.sched.decisions import CEILINGS, compile_driver, instructions


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("decisions"))


@pytest.mark.parametrize(("mode", "groups"), CEILINGS)
def test_a_decision_takes_no_more_instructions(driver: Path, mode: str, groups: int) -> None:
    assert instructions(driver, mode, groups) <= CEILINGS[mode, groups]


def test_the_cost_grows_with_the_logarithm_of_the_groups(driver: Path) -> None:
    for mode in ("switch", "lease"):
        few, many, most = (instructions(driver, mode, groups) for groups in (16, 256, 4096))
        assert most - many < 1.3 * (many - few), mode
