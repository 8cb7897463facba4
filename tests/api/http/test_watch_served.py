# SPDX-License-Identifier: Apache-2.0
"""The event stream of a served API with SQLite over TLS: no event is lost when the API stops and starts again."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.api.http.test_ca_rotation import Api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path)
    yield made
    made.end()


def watch(api: Api, *, last_id: str = "") -> Iterator[str]:
    """Yields lines until the API ends the answer; a broken connection is an error."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with api.cloud.operator.stream("GET", "/v1/events/watch?after=0", headers=headers) as answer:
        assert answer.status_code == 200
        yield from answer.iter_lines()


def told(lines: Iterator[str], name: str) -> str:
    """Reads until an event about a tenant of this name; returns the event's id."""
    said = ""
    for line in lines:
        said = line.removeprefix("id: ") if line.startswith("id: ") else said
        if line.startswith("data: ") and f'"object":"{name}"' in line:
            return said
    raise AssertionError(f"the stream ended before {name}")


def test_a_watcher_is_let_go_with_a_hint_and_goes_on_where_it_was(api: Api) -> None:
    lines = watch(api)
    assert next(lines) == "retry: 1000"
    api.cloud.operator.post("/v1/tenants", json={"name": "acme"})
    position = told(lines, "acme")

    api.process.terminate()
    rest = list(lines)
    assert "retry: 1000" in rest, "when to come back is said once more"
    assert not any(line.startswith("data: ") for line in rest)
    assert api.process.wait(60) == 0

    api.again()
    made = api.cloud.operator.post("/v1/tenants", json={"name": "blue"})
    assert made.status_code == 201
    again = watch(api, last_id=position)
    seen = []
    for line in again:
        if line.startswith("data: "):
            seen.append(line)
            if '"object":"blue"' in line:
                break
    assert not any('"object":"acme"' in line for line in seen), "it was told before"
    with pytest.raises(httpx2.HTTPStatusError):
        api.cloud.operator.get("/v1/events/watch", headers={"Last-Event-ID": "000000000000-1"}).raise_for_status()
