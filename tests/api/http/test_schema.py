# SPDX-License-Identifier: Apache-2.0
"""Every caller sends every operation of the OpenAPI document, both as the document allows and as it does not.

schemathesis makes the requests and compares the answers with the document. There must be no 5xx, and no status, content
type, header or body that the document does not describe. Forbidden requests must not be accepted. Half of the names and
ids exist.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CheckContext, not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.api.http.cloud import GIB, Caller, Cloud

# The form of answers is decided above the database layer.
pytestmark = pytest.mark.sqlite_long

NOT_DECLARED = {"content-type", "content-length", "connection"}
"""OpenAPI describes these headers elsewhere, or leaves them to HTTP."""


def no_header_but_those_declared(_: CheckContext, response: Response, case: schemathesis.Case) -> None:
    """Compares sent headers with the document; `response_headers_conformance` checks the other direction."""
    described = case.operation.responses.find_by_status_code(response.status_code)
    assert described is not None
    more = response.headers.keys() - NOT_DECLARED - {name.lower() for name, _ in described.headers.items()}
    assert not more, f"{response.status_code} has {', '.join(more)}"


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    no_header_but_those_declared,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
PLENTY = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 99}


class Inhabited:
    """A cloud with one object of each kind; `known`: names and ids, by the parameter or member that takes them."""

    def __init__(self, cloud: Cloud) -> None:
        application: Any = cloud.http.app
        application.state.feed.stop()  # event streams end at once
        host = cloud.host("h1")
        account = cloud.tenant("acme", **PLENTY)
        project = cloud.tenant("web", account="acme", **PLENTY)
        cloud.profile("p1", 10)
        claimed = account.post("/v1/slices", {"tenant": "web", "profile": "p1"})
        self.callers: dict[str, Caller] = {
            "nobody": cloud.nobody,
            "admin": cloud.admin,
            "operator": cloud.operator,
            "viewer": cloud.token(role="viewer"),
            "tenant-admin": cloud.token(role="tenant-admin", subject="acme"),
            "tenant": account,
            "project": project,
            "host": host,
        }
        self.known = {
            "tenant": "web",
            "name": "web",
            "profile": "p1",
            "host": "h1",
            "account": "acme",
            "subject": "web",
            "slice_id": claimed["id"],
            "gpu_id": claimed["gpu_id"],
        }
        self.schema = schemathesis.openapi.from_asgi("/openapi.json", cloud.http.app)
        self.cloud = cloud

    def name(self, case: schemathesis.Case, parameter: str) -> str:
        """Returns a valid `parameter` for this request; ``name`` means different things in different paths."""
        kinds = {"/v1/profiles": "p1", "/v1/hosts": "h1", "/v1/tenants": "web", "/v1/quotas": "web"}
        if parameter == "name":
            return next((known for path, known in kinds.items() if case.operation.path.startswith(path)), "web")
        return self.known[parameter]

    def operations(self) -> Iterator[Any]:
        """All operations of the document."""
        yield from (found.ok() for found in self.schema.get_all_operations())


@st.composite
def requests(draw: st.DrawFn, inhabited: Inhabited, operation: Any, mode: GenerationMode) -> schemathesis.Case:
    """One request; half of its names exist, and it does not wait for news."""
    case: schemathesis.Case = draw(operation.as_strategy(generation_mode=mode))
    for members in (case.path_parameters, case.query, case.body):
        if isinstance(members, dict):
            for name in members.keys() & (inhabited.known.keys() | {"name"}):
                # A value that was made invalid on purpose stays.
                if mode is GenerationMode.POSITIVE and draw(st.booleans()):
                    members[name] = inhabited.name(case, name)
            if isinstance(members.get("wait_s"), int):
                members["wait_s"] = min(members["wait_s"], 0)
    return case


def hold(cloud: Cloud, examples: int) -> None:
    """Sends each operation this many times in each mode."""
    inhabited = Inhabited(cloud)
    statuses: Counter[int] = Counter()
    failures: dict[str, str] = {}
    with asgi.get_client(cloud.http.app) as client:
        for operation in inhabited.operations():
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

                @settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                    phases=[Phase.explicit, Phase.generate, Phase.shrink],
                )
                @given(case=requests(inhabited, operation, mode), who=st.sampled_from(list(inhabited.callers)))
                def answers_as_described(case: schemathesis.Case, who: str) -> None:
                    token = inhabited.callers[who].token
                    case.headers["Authorization"] = f"Bearer {token}"
                    if token is None:
                        del case.headers["Authorization"]
                    response = case.call(session=client)
                    statuses[response.status_code] += 1
                    case.validate_response(response, checks=CHECKS)

                try:
                    answers_as_described()
                except Unsatisfiable:
                    assert mode is GenerationMode.NEGATIVE  # an operation without input has no invalid request
                except Exception as error:
                    failures.setdefault(operation.label, f"{mode.value}: {error}")
    assert not failures, "\n\n".join(f"{label}\n{said}" for label, said in failures.items())
    # Otherwise almost every request got the same refusal.
    assert {200, 401, 403, 404, 422} <= set(statuses), statuses


def test_answers_are_as_the_document_describes_them(cloud: Cloud) -> None:
    hold(cloud, examples=2)


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_a_watch_is_as_the_document_describes_it(cloud: Cloud) -> None:
    """Generated values rarely name an existing epoch or event."""
    inhabited = Inhabited(cloud)
    with asgi.get_client(cloud.http.app) as client:
        for who in ("admin", "project"):
            said = {"Authorization": f"Bearer {inhabited.callers[who].token}"}
            case = inhabited.schema["/v1/events/watch"]["GET"].Case(query={"after": 0}, headers=said)
            response = case.call(session=client)
            assert response.status_code == 200
            assert response.text.startswith("retry: ")
            case.validate_response(response, checks=CHECKS)


@pytest.mark.long
def test_answers_are_as_the_document_describes_them_for_long(cloud: Cloud) -> None:
    hold(cloud, examples=100)
