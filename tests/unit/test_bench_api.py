# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of the API says of what it could not measure, and how it counts what watchers miss."""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.api import __main__ as program
from tests.bench.api import openstack, peers
from tests.bench.api.streams import Watcher


def without_placement(_bench: Any) -> dict[str, Any]:
    raise openstack.NotInstallableError("no network")


def run(names: list[str], *, small: bool) -> dict[str, Any]:
    """As the program does, but for the servers."""
    assert small
    return {"experiments": {name: program.measured(name, None) for name in names}}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("experiment", "left"), [(without_placement, 1), (lambda _: {"figures": {}, "targets": []}, 0)]
)
def test_strict_fails_without_what_was_asked_for(
    experiment: Any, left: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "EXPERIMENTS", {"placement": experiment})
    monkeypatch.setattr(program, "run", run)
    options = ["--small", "--output", str(tmp_path / "api.json")]
    assert program.main(options) == 0
    assert program.main([*options, "--strict"]) == left
    assert f"\n{left} missed" in capsys.readouterr().out


def test_a_peer_without_a_claim_is_no_target_that_is_met() -> None:
    targets = peers.targets(40, ours=500.0, theirs={1000: 0.0, 5: 4.0})
    assert [(each["value"], each["met"]) for each in targets] == [(0.0, False), (125.0, True)]


def test_watchers_know_what_they_missed_and_what_came_again() -> None:
    watcher = Watcher(position=3)
    for number in (4, 5, 7, 7, 6, 8):
        watcher.take(number)
    assert (watcher.position, watcher.lost, watcher.again) == (8, 1, 2)
