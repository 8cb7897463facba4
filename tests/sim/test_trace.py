# SPDX-License-Identifier: Apache-2.0
"""A user's own trace: read from CSV and JSON; the error for every bad one names file, line, field and value."""

from pathlib import Path

import pytest

from vgpumgr.errors import ScenarioError
from vgpumgr.sim import trace

CSV = "arrival_us,work_us,launch_us,kernel_id,request\n0,100,5,7,1\n0,50.5,5,8,1\n2000.125,10,0,7,2\n"
JSON = '[\n {"arrival_us": 0, "work_us": 100},\n {"arrival_us": 2000.125, "work_us": 10, "kernel_id": 3}\n]\n'


def written(folder: Path, text: str, name: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_of_one_request_are_its_kernels(tmp_path: Path) -> None:
    found = trace.load(written(tmp_path, CSV, "t.csv"))
    assert found.arrivals_ns.tolist() == [0, 2_000_125]
    assert found.requests.tolist() == [0, 2]
    assert found.work_ns.tolist() == [100_000, 50_500, 10_000]
    assert found.launch_ns.tolist() == [5_000, 5_000, 0]
    assert found.kernel_id.tolist() == [7, 8, 7]


def test_json_says_the_same(tmp_path: Path) -> None:
    found = trace.load(written(tmp_path, JSON, "t.json"))
    assert found.arrivals_ns.tolist() == [0, 2_000_125]
    assert found.requests.tolist() == [0, 1]
    assert found.work_ns.tolist() == [100_000, 10_000]
    assert found.kernel_id.tolist() == [0, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("arrival_us,work\n", "t.csv:1: 'work': no such field; expected arrival_us, work_us and optionally launch_us,"),
        ("arrival_us\n1\n", "t.csv:1: work_us is missing; expected arrival_us, work_us"),
        ("arrival_us,work_us,work_us\n", "t.csv:1: expected each column once"),
        ("", "t.csv:1: arrival_us is missing"),
        ("arrival_us,work_us\n", "t.csv: expected at least one row"),
        ("arrival_us,work_us\n0,1\n1\n", "t.csv:3: 1 cells: expected 2, as in the first line"),
        ("arrival_us,work_us\n0,1\n\n5,-1\n", "t.csv:4: work_us: '-1': expected microseconds, with at most three"),
        ("arrival_us,work_us\n0,1ms\n", "t.csv:2: work_us: '1ms': expected microseconds"),
        ("arrival_us,work_us\n0,nan\n", "t.csv:2: work_us: 'nan': expected microseconds"),
        ("arrival_us,work_us\n0,0\n", "t.csv:2: work_us: '0': expected more than 0"),
        ("arrival_us,work_us\n4000000000,1\n", "t.csv:2: arrival_us: '4000000000': expected at most 3600000000"),
        ("arrival_us,work_us\n5,1\n4,1\n", "t.csv:3: arrival_us: '4': expected at least the row before's"),
        ("arrival_us,work_us,request\n5,1,x\n", "t.csv:2: request: 'x': expected a whole number below 2^32"),
        ('arrival_us,work_us\n"5,1\n', "t.csv:2: unexpected end of data; expected CSV"),
    ],
)
def test_a_bad_csv_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        trace.load(written(tmp_path, text, "t.csv"))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "t.json:1: expected a list of objects"),
        ("", "t.json:1: expected a list of objects"),
        ("\n[]", "t.json: expected at least one row"),
        ("[\n1]", "t.json:2: expected an object with arrival_us, work_us"),
        ('[{"arrival_us": 0, "work_us": 1}\n', "t.json:2: expected a comma or the end of the list"),
        ('[{"arrival_us": 0, "work_us": 1},\n\n]', "t.json:3: expecting value; expected an object of JSON"),
        ('[{"arrival_us": 0, "work_us": 1},\n{"arrival_us": 0}]', "t.json:2: work_us is missing"),
        ('[{"arrival_us": 0, "work_us": true}]', "t.json:1: work_us: 'True': expected microseconds"),
        ('[{"arrival_us": 0, "work_us": NaN}]', "t.json:1: work_us: 'NaN': expected microseconds"),
        ('[{"arrival_us": 0, "work_us": 1, "x": 1}]', "t.json:1: 'x': no such field"),
        ("[" * 100_000, "t.json:1: too many levels"),
    ],
)
def test_a_bad_json_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        trace.load(written(tmp_path, text, "t.json"))
    assert expected in str(caught.value)


def test_too_many_rows_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_ROWS", 2)
    with pytest.raises(ScenarioError, match=r"t\.csv:4: expected at most 2 rows"):
        trace.load(written(tmp_path, CSV, "t.csv"))
