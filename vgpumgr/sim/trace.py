# SPDX-License-Identifier: Apache-2.0
"""A user's own trace of requests: CSV or JSON, checked field by field.

Columns, or members of the objects in a JSON list: `arrival_us` and `work_us`; optional `launch_us` (host time to launch
it), `kernel_id`, and `request`. Rows of the same request follow one another and are its kernels; the first row has the
arrival. Without `request` each row is a request. Times are microseconds with at most three decimals.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vgpumgr.errors import ScenarioError
from vgpumgr.sim.document import read_limited
from vgpumgr.sim.quantity import LONGEST_NS
from vgpumgr.sim.workloads import Times

MAX_BYTES = 32 * 1024 * 1024
MAX_ROWS = 500_000
NEEDED = ("arrival_us", "work_us")
OPTIONAL = ("launch_us", "kernel_id", "request")
_TIME = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,3}0*)?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_EXPECTED_FIELDS = f"expected {', '.join(NEEDED)} and optionally {', '.join(OPTIONAL)}"


@dataclass(frozen=True)
class Trace:
    """Kernels in order. `requests`: the index of each request's first kernel. There is one arrival per request."""

    arrivals_ns: Times
    requests: NDArray[np.uint32]
    work_ns: Times
    launch_ns: Times
    kernel_id: NDArray[np.uint32]


def load(path: Path) -> Trace:
    """Return a trace, CSV unless the file's name ends in .json. ScenarioError names file, line, field and value."""
    text = read_limited(path, limit_bytes=MAX_BYTES, what="a trace in CSV or JSON")
    rows = _json_rows(text, path) if path.suffix.lower() == ".json" else _csv_rows(text, path)
    arrivals: list[int] = []
    requests: list[int] = []
    kernels: list[tuple[int, int, int]] = []
    last_request: int | None = None
    for where, row in rows:
        if len(kernels) == MAX_ROWS:
            raise ScenarioError(f"{where}: expected at most {MAX_ROWS} rows")
        arrival_ns = _time_ns(row, "arrival_us", where)
        work_ns = _time_ns(row, "work_us", where)
        if not work_ns:
            raise ScenarioError(f"{where}: work_us: {row['work_us']!r}: expected more than 0")
        request = _number(row, "request", where)
        if request is None or request != last_request:
            if arrivals and arrival_ns < arrivals[-1]:
                raise ScenarioError(
                    f"{where}: arrival_us: {row['arrival_us']!r}: expected at least the row before's; sort the trace"
                )
            arrivals.append(arrival_ns)
            requests.append(len(kernels))
        last_request = request
        kernels.append((work_ns, _time_ns(row, "launch_us", where), _number(row, "kernel_id", where) or 0))
    if not kernels:
        raise ScenarioError(f"{path}: expected at least one row")
    columns = np.array(kernels, dtype=np.int64)
    return Trace(
        np.array(arrivals, dtype=np.int64),
        np.array(requests, dtype=np.uint32),
        columns[:, 0],
        columns[:, 1],
        columns[:, 2].astype(np.uint32),
    )


def _csv_rows(text: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_fields(header, f"{path}:1")
        if len(set(header)) < len(header):
            raise ScenarioError(f"{path}:1: expected each column once")
        for cells in reader:
            if not cells:
                continue
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                raise ScenarioError(f"{where}: {len(cells)} cells: expected {len(header)}, as in the first line")
            yield where, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise ScenarioError(f"{path}:{reader.line_num}: {error}; expected CSV") from None


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Decode one object after the other, so that the line of each is known."""
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    blank = re.compile(r"\s*")
    position = _after(blank, text, 0)
    line = 1 + text.count("\n", 0, position)
    if text[position : position + 1] != "[":
        raise ScenarioError(f"{path}:{line}: expected a list of objects")
    separator = "["
    while True:
        start = _after(blank, text, position + 1)
        line += text.count("\n", position, start)
        where = f"{path}:{line}"
        if separator == "[" and text[start : start + 1] == "]":
            return
        try:
            row, end = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg.lower() if isinstance(error, json.JSONDecodeError) else "too many levels"
            raise ScenarioError(f"{where}: {reason}; expected an object of JSON") from None
        if not isinstance(row, dict):
            raise ScenarioError(f"{where}: expected an object with {', '.join(NEEDED)}")
        _check_fields(row, where)
        yield where, row
        position = _after(blank, text, end)
        line += text.count("\n", start, position)
        separator = text[position : position + 1]
        if separator == "]":
            return
        if separator != ",":
            raise ScenarioError(f"{path}:{line}: expected a comma or the end of the list")


def _after(blank: re.Pattern[str], text: str, position: int) -> int:
    found = blank.match(text, position)
    return found.end() if found else position


def _check_fields(names: "Mapping[str, Any] | list[str]", where: str) -> None:
    for name in names:
        if name not in NEEDED + OPTIONAL:
            raise ScenarioError(f"{where}: {name[:80]!r}: no such field; {_EXPECTED_FIELDS}")
    for name in NEEDED:
        if name not in names:
            raise ScenarioError(f"{where}: {name} is missing; {_EXPECTED_FIELDS}")


def _time_ns(row: Mapping[str, Any], field: str, where: str) -> int:
    text = row.get(field)
    if text is None and field in OPTIONAL:
        return 0
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        raise ScenarioError(f"{where}: {field}: {str(text)[:80]!r}: expected microseconds, with at most three decimals")
    whole, _, fraction = text.partition(".")
    time_ns = int(whole) * 1000 + int(fraction[:3].ljust(3, "0"))
    if time_ns > LONGEST_NS:
        raise ScenarioError(f"{where}: {field}: {text!r}: expected at most {LONGEST_NS // 1000}")
    return time_ns


def _number(row: Mapping[str, Any], field: str, where: str) -> int | None:
    text = row.get(field)
    if text is None:
        return None
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or int(text) >= 2**32:
        raise ScenarioError(f"{where}: {field}: {str(text)[:80]!r}: expected a whole number below 2^32")
    return int(text)
