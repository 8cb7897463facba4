# SPDX-License-Identifier: Apache-2.0
"""`make bench-sched` runs all its experiments and writes the files that other tools read. This test does not check its
figures."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.sched import __main__ as bench
from tests.bench.sched import page
from tests.bench.sched.result import table_lines

EXPERIMENT = {"name", "model", "seeds", "baselines", "hashes", "figures", "targets", "losing", "seconds"}


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    output = tmp_path_factory.mktemp("bench") / "sched.json"
    assert bench.main(["--quick", "--output", str(output)]) == 0, "a missed target is no failure"
    written: dict[str, Any] = json.loads(output.read_text())
    return written


def test_every_experiment_runs_and_the_document_has_its_shape(document: dict[str, Any]) -> None:
    assert set(document) == {"format", "quick", "commit", "machine", "experiments"}
    assert document["format"] == "vgpumgr.bench-sched/1"
    assert document["quick"]
    assert set(document["experiments"]) == set(bench.experiments())
    for name, result in document["experiments"].items():
        assert set(result) == EXPERIMENT, name
        assert set(result["hashes"]) >= {"workload", "schedule"}, name
        assert result["figures"], name
        assert all(table for table in result["figures"].values()), name
        assert result["baselines"], name
        assert result["losing"], name
        for target in result["targets"]:
            assert set(target) == {"what", "wanted", "value", "met"}, name
            assert isinstance(target["met"], bool), name


def test_a_missed_target_fails_only_if_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*, quick: bool) -> dict[str, Any]:
        targets = [{"what": "a wait", "wanted": "<= 1 ms", "value": 2.0, "met": False}]
        parts: dict[str, Any] = {"seeds": [1], "baselines": ["fifo"], "hashes": {}, "figures": {}, "losing": []}
        return {"name": "one", "model": "none", "targets": targets, **parts}

    monkeypatch.setattr(bench, "experiments", lambda: {"one": measure})
    common = ["--output", str(tmp_path / "out.json")]
    assert bench.main(common) == 0
    assert "NOT MET" in capsys.readouterr().out.rpartition("targets")[2]
    assert bench.main([*common, "--strict"]) == 1


def test_every_experiment_has_its_place_in_the_page(document: dict[str, Any]) -> None:
    filled = page.filled(page.PAGE.read_text(), document)
    for name, result in document["experiments"].items():
        begin, end = page.marks(name)
        assert filled.count(begin) == filled.count(end) == 1, name
        inside = filled.partition(begin)[2].partition(end)[0]
        assert all(target["what"] in inside for target in result["targets"]), name
        assert all(loss in inside for loss in result["losing"]), name
        assert f"({page.TABLES.name}/{name}.md)" in inside, name
    assert page.filled(filled, document) == filled


def test_every_figure_is_in_the_tables_of_its_experiment(document: dict[str, Any]) -> None:
    for name, result in document["experiments"].items():
        written = page.tables(name, result, document)
        for title, rows in result["figures"].items():
            _, *lines = table_lines(title, rows)
            table = written.partition(f"## {title}\n")[2].partition("\n## ")[0].replace("\\|", "|")
            assert all(cell in table for line in lines for cell in line), (name, title)


def test_the_overview_counts_the_targets_of_each_section_and_names_those_missed() -> None:
    text = """# Page
## How to read it
words
## Caps, and more
| target | wanted | measured |  |
| --- | --- | --- | --- |
| a wait, ms | <= 1 | 0.5 | met |
| a share | >= 2x | 1.5 | **missed** |
"""
    assert page.overview(text).splitlines()[2:] == [
        "| [Caps, and more](#caps-and-more) | 1 of 2 | a share: 1.5 (>= 2x) |"
    ]
