# SPDX-License-Identifier: Apache-2.0
"""Every parameter and every member of a body has a range; values just outside are refused by name.

The ranges come from the OpenAPI document. The rest of a request comes from its examples, and an authorized caller sends
it.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from httpx2 import Response

from tests.api.http.cloud import GIB, Caller, Cloud
from tests.api.http.outside import Bounds, json_path, put
from vgpumgr.wire.problem import Code

JSON = "application/json"
ENROL = "/v1/enroll"
AGENTS = "/v1/hosts/{host}/"
DAY = {"since": "2026-11-21T00:00:00Z", "until": "2026-11-22T00:00:00Z"}

UNBOUNDED = {"query.page_size": "what is above 1000 counts as 1000"}
"""Parameters without a range in the document, and the reason."""

FILLING = ["POST /v1/hosts/{host}/report $.refusals[0]"]
"""Members that may be as long as the whole body: for longer values the body itself is refused."""

GOOD = {
    "about": "slice",
    "action": "slice.claimed",
    "epoch": "0" * 12,
    "If-Match": '"1"',
    "kind": "host.drain",
    "last-event-id": "1",
    "selector": "zone=a",
}
"""Values for parameters whose pattern does not match a plain word."""

FILLED = {"reserve_period_us": 10_000, "band": "latency"}
"""A member that the examples leave out, and the member that it depends on."""


@dataclass(frozen=True)
class Operation:
    """`names`: for the path. `asked`: the schemas of parameters, by place and name. `body`: its example, for
    `schema`.
    """

    method: str
    described: str
    names: dict[str, str]
    asked: dict[tuple[str, str], Any]
    needed: dict[str, str]
    schema: Any = None
    body: Any = field(default=None, hash=False)

    def path(self, **other: str) -> str:
        """Returns the path with the names of the examples, or with others."""
        return self.described.format(**{name: quote(each) for name, each in (self.names | other).items()})


def operations(document: dict[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            parameters = said.get("parameters", ())
            names = {each["name"]: each["example"] for each in parameters if each["in"] == "path"}
            media = said.get("requestBody", {}).get("content", {}).get(JSON)
            shown = media and document["components"]["examples"][media["examples"]["usual"]["$ref"].split("/")[-1]]
            yield Operation(
                method=method.upper(),
                described=path,
                names=names,
                asked={(each["in"], each["name"]): each["schema"] for each in parameters},
                needed={
                    each["name"]: DAY[each["name"]]
                    for each in parameters
                    if each["in"] == "query" and each.get("required")
                },
                schema=media and media["schema"],
                body=shown and {name: FILLED.get(name, value) for name, value in shown["value"].items()},
            )


@dataclass
class Asking:
    """Sends requests for operations, each as an authorized caller."""

    cloud: Cloud
    host: Caller
    enrolling: Caller

    def __call__(
        self, operation: Operation, *, place: str = "", said: dict[str, Any] | None = None, body: Any = None
    ) -> Response:
        """`said`: parameters in one place."""
        other = {place: said or {}}
        who = self.host if operation.described.startswith(AGENTS) else self.cloud.admin
        who = self.enrolling if operation.described == ENROL else who
        return who(
            operation.method,
            operation.path(**other.get("path", {})),
            operation.body if body is None else body,
            params=operation.needed | other.get("query", {}),
            headers={"If-Match": '"999999"'} | other.get("header", {}),
        )


@pytest.fixture
def asking(cloud: Cloud) -> Asking:
    """A cloud with the objects that the examples name."""
    application: Any = cloud.http.app
    application.state.feed.stop()  # event streams end at once
    host = cloud.host("gpu-a")
    cloud.tenant("blue", share_permille=1000, mem_bytes=GIB, slices=9)
    cloud.profile("quarter", 250)
    once = cloud.operator.post("/v1/hosts", {"name": "gpu-b"})["enroll_token"]
    return Asking(cloud, host, Caller(cloud.http, once))


def can_be_sent(place: str, value: Any) -> bool:
    """A path with an empty name is another path, and a newline ends a header."""
    return not (place == "path" and value == "") and not (place == "header" and value.endswith("\n"))


def refused_by(response: Response) -> list[str]:
    """Returns the fields that an answer calls wrong; none if the answer is not about fields."""
    said = response.json() if response.content else {}
    return [each["field"] for each in said["reasons"]] if said.get("code") == Code.FIELD_INVALID else []


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_what_is_just_outside_of_a_range_is_refused_by_name(cloud: Cloud, asking: Asking) -> None:
    document = cloud.nobody.get("/openapi.json")
    bounds, otherwise = Bounds(document), {}
    tried: Counter[str] = Counter()
    for operation in operations(document):
        wrong = [
            (f"{place}.{name.lower()}", asking(operation, place=place, said={name: each.value}), each.value)
            for (place, name), schema in operation.asked.items()
            for each in bounds.wrong(schema, GOOD.get(name, "a"))
            if can_be_sent(place, each.value)
        ]
        if operation.schema is not None:
            wrong += [
                (json_path(each.field), asking(operation, body=put(operation.body, each.place, each.value)), each.value)
                for each in bounds.wrong(operation.schema, operation.body)
            ]
        for named, answer, value in wrong:
            tried[re.split(r"\W", named)[0]] += 1
            filling = f"{operation.method} {operation.described} {named}" in FILLING
            expected = (413, []) if filling else (422, [named])
            if (answer.status_code, refused_by(answer)) != expected:
                otherwise[f"{operation.method} {operation.described} {named} {str(value)[:90]!r}"] = answer.text[:300]
    assert otherwise == {}
    assert tried[""] > 360
    assert tried["query"] > 240
    assert tried["path"] > 60
    assert tried["header"] > 40


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_without_that_the_same_requests_are_understood(cloud: Cloud, asking: Asking) -> None:
    outcomes = {}
    for operation in operations(cloud.nobody.get("/openapi.json")):
        answer = asking(operation)
        if answer.status_code in (400, 401, 403, 405, 415, 422):
            outcomes[f"{operation.method} {operation.described}"] = answer.text
    assert outcomes == {}


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_what_has_no_range_is_known(cloud: Cloud) -> None:
    document = cloud.nobody.get("/openapi.json")
    bounds, found = Bounds(document), set()
    for operation in operations(document):
        found |= {".".join(asked) for asked, schema in operation.asked.items() if [*bounds.unbounded(schema)]}
        if operation.schema is not None:
            where = (json_path(place) for place in bounds.unbounded(operation.schema))
            found |= {f"{operation.method} {operation.described} {path}" for path in where}
    assert found == UNBOUNDED.keys()
