# SPDX-License-Identifier: Apache-2.0
"""Measured results are kept for the agent, which trusts them no further than they say."""

import json
from pathlib import Path
from typing import Any

import pytest

from vgpumgr import probe_results

UUID = "GPU-5a0e1f00-0000-4000-8000-000000000001"


def measured(**changes: Any) -> dict[str, Any]:
    cost = {"mean": 129.2, "low": 120.0, "high": 140.0, "count": 5}
    return {"gpu": {"uuid": UUID}, "refused": None, "conclusive": True, "switch_cost_us": cost} | changes


def test_what_was_stored_is_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "probes"
    assert probe_results.store(directory, [measured()]) == [directory / f"{UUID}.json"]
    assert probe_results.switch_cost_us(directory, UUID) == 130
    assert probe_results.switch_cost_us(directory, "GPU-another") == 0
    assert (directory / f"{UUID}.json").stat().st_mode & 0o777 == 0o644
    probe_results.store(directory, [measured(switch_cost_us={"mean": 215.0, "low": 200.0})])
    assert probe_results.switch_cost_us(directory, UUID) == 215
    assert [path.name for path in directory.iterdir()] == [f"{UUID}.json"]


def test_a_gpu_that_was_refused_keeps_what_was_found_before(tmp_path: Path) -> None:
    probe_results.store(tmp_path, [measured()])
    assert probe_results.store(tmp_path, [measured(refused={"code": "probe.busy", "detail": "x"})]) == []
    assert probe_results.switch_cost_us(tmp_path, UUID) == 130


def test_nothing_is_kept_where_there_is_no_agent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        probe_results.store(tmp_path / "vgpumgr/probes", [measured()])


@pytest.mark.parametrize("uuid", ["", "GPU-", "../GPU-1", "GPU-../x", "GPU-" + "1" * 61])
def test_a_name_that_is_no_uuid_names_no_file(tmp_path: Path, uuid: str) -> None:
    assert probe_results.store(tmp_path, [measured(gpu={"uuid": uuid})]) == []
    (tmp_path / f"{uuid.replace('/', '_')}.json").write_text(json.dumps(measured()))
    assert probe_results.switch_cost_us(tmp_path, uuid) == 0


@pytest.mark.parametrize(
    "found",
    [
        measured(switch_cost_us=None),
        measured(conclusive=False),
        measured(switch_cost_us={"mean": 1.0, "low": -1.0}),
        measured(switch_cost_us={"mean": 1.0}),
        measured(switch_cost_us={"mean": float("inf"), "low": 1.0}),
        measured(switch_cost_us={"mean": "130", "low": 1.0}),
        measured(switch_cost_us=130),
        {},
        [],
    ],
)
def test_what_does_not_tell_a_cost_counts_as_none(tmp_path: Path, found: object) -> None:
    (tmp_path / f"{UUID}.json").write_text(json.dumps(found))
    assert probe_results.switch_cost_us(tmp_path, UUID) == 0


def test_a_damaged_or_absurd_file_counts_as_none_or_is_bounded(tmp_path: Path) -> None:
    (tmp_path / f"{UUID}.json").write_bytes(b"\xff{")
    assert probe_results.switch_cost_us(tmp_path, UUID) == 0
    (tmp_path / f"{UUID}.json").write_text(json.dumps(measured(switch_cost_us={"mean": 1e30, "low": 1.0})))
    assert probe_results.switch_cost_us(tmp_path, UUID) == 1_000_000
