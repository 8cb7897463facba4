# SPDX-License-Identifier: Apache-2.0
"""A tenant cannot learn about hidden objects by asking for them: the answers are alike, and cost the same statements.

The routes come from the authorization matrix and their members from the OpenAPI document. So the test also covers new
routes that name hosts, labels or other tenants' objects.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event
from vgpumgr_api.edge.openapi import document

from tests.api.http.cloud import GIB, Caller, Cloud
from tests.api.http.test_roles import ROUTES, cast_of
from vgpumgr.wire.problem import Code

# Answers and look-ups are decided above the database layer; the tests run on PostgreSQL more often.
pytestmark = pytest.mark.sqlite_long

TELLING = {"host", "selector", "affinity", "anti_affinity", "reservation", "vm_uuid"}
"""Members and parameters that can name other tenants' objects."""

PLENTY = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 9}
CLAIM = {"tenant": "acme", "profile": "half"}
HELD = CLAIM | {"places": 1, "expires_in_s": 600}
CLAIMS = {
    ("POST", "/v1/slices"): lambda said: CLAIM | said,
    ("POST", "/v1/slices:batch"): lambda said: {"slices": [CLAIM, CLAIM | said]},
    ("POST", "/v1/slices:explain"): lambda said: CLAIM | said,
    ("POST", "/v1/reservations"): lambda said: HELD | said,
}
MOVE = ("POST", "/v1/slices/{slice_id}:move")
LISTS = {("GET", "/v1/slices"): ("host", "vm_uuid"), ("GET", "/v1/usage"): ("host",)}


@dataclass(frozen=True)
class Scene:
    """`there`: existing objects, by the names used below. `statements`: those of the present request."""

    cloud: Cloud
    own: Caller
    poor: Caller
    there: dict[str, str]
    statements: list[str]

    def told(self, who: Caller, method: str, path: str, body: Any, names: list[str]) -> tuple[Any, ...]:
        """Returns the whole answer with the requested names masked, and the statements that it took."""
        self.statements.clear()
        answer = who(method, path, body, headers={"X-Request-Id": "r"})
        said, statements = answer.text, tuple(self.statements)
        for name in names:
            said = said.replace(name, "NAME")
        return answer.status_code, said, sorted(answer.headers), statements


@pytest.fixture
def scene(cloud: Cloud) -> Iterator[Scene]:
    """`free` takes claims, the other hosts do not; `blue` is another tenant, which has some objects of every kind."""
    own, poor, blue = cloud.tenant("acme", **PLENTY), cloud.tenant("poor"), cloud.tenant("blue", **PLENTY)
    cloud.profile("half", 500)
    cloud.profile("whole", 1000)
    hosts = {name: cloud.host(name) for name in ("free", "full", "cordoned", "fenced")}
    cloud.operator.post("/v1/hosts", {"name": "announced"})
    cloud.operator.patch("/v1/hosts/full", {"labels": {"zone": "a", "rack": "r1"}})
    vm = str(uuid4())
    blue.post(
        "/v1/slices",
        {"tenant": "blue", "profile": "whole", "host": "full", "vm_uuid": vm, "affinity": {"key": "train"}},
    )
    cloud.operator.patch("/v1/hosts/free", {"labels": {"zone": "b"}})
    held = blue.post("/v1/reservations", {"tenant": "blue", "profile": "half", "places": 1, "expires_in_s": 600})
    cloud.operator.patch("/v1/hosts/cordoned", {"state": "cordoned"})
    etag = cloud.operator("GET", "/v1/hosts/fenced").headers["etag"]
    fence = {"confirm": "fenced", "force": True}
    cloud.operator.ok("POST", "/v1/hosts/fenced:fence", 200, fence, headers={"If-Match": etag})
    for who in (own, poor):
        look_up(who)
    there = {"uuid of full": str(hosts["full"].id), "vm": vm, "reservation": held["id"]}
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(cloud.database.engine, "before_cursor_execute", note)
    yield Scene(cloud, own, poor, there, statements)
    event.remove(cloud.database.engine, "before_cursor_execute", note)


def look_up(caller: Caller) -> None:
    """Has the API look up the caller now; otherwise only the first of several claims would do that."""
    caller.refused(Code.FIELD_INVALID, "POST", "/v1/slices", {})


def pairs(there: dict[str, str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields what exists but cannot be used for this claim, paired with an invented name."""
    hosts: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"host": name, "profile": profile}, {"host": "invented", "profile": profile})
        for name in ("full", "cordoned", "fenced", "announced")
        for profile in ("half", "whole")
    ]
    nobody, apart = str(uuid4()), {"zone": "nowhere"}
    return [
        *hosts,
        ({"host": there["uuid of full"]}, {"host": nobody}),
        ({"host": "free", "selector": apart}, {"host": "invented", "selector": apart}),
        ({"host": "full", "selector": {"zone": "b"}}, {"host": "full", "selector": {"zone": "c"}}),
        ({"selector": {"zone": "a"}}, {"selector": {"zone": "invented"}}),
        ({"selector": {"rack": "r1"}}, {"selector": {"invented": "r1"}}),
        ({"selector": {"zone": "b", "rack": "r1"}}, {"selector": {"zone": "c", "rack": "r1"}}),
    ]


def test_a_host_or_label_that_is_no_use_looks_like_none(scene: Scene) -> None:
    for (method, path), body in CLAIMS.items():
        for real, invented in pairs(scene.there):
            names = [*map(str, (real.get("host"), invented.get("host"))), scene.there["uuid of full"]]
            told = [scene.told(scene.own, method, path, body(said), names) for said in (real, invented)]
            assert told[0] == told[1], (path, real)
            refused = json.loads(told[0][1])
            reasons = {each["code"]: each["count"] for each in refused["reasons"]}
            assert refused.get("code", Code.CAPACITY_NONE) == Code.CAPACITY_NONE, (path, real)
            assert sum(reasons.values()) == 4, "every GPU is counted"


def test_who_may_claim_nothing_finds_no_host_and_no_label(scene: Scene) -> None:
    """This includes hosts with room, where a claim would succeed."""
    for (method, path), body in CLAIMS.items():
        # The audit has one entry an hour for repeated refusals: the entry of the first one.
        scene.poor(method, path, json.loads(json.dumps(body({})).replace('"acme"', '"poor"')))
        for real, invented in (
            ({"host": "free"}, {"host": "invented"}),
            ({"selector": {"zone": "b"}}, {"selector": {"zone": "invented"}}),
        ):
            sent = [json.loads(json.dumps(body(said)).replace('"acme"', '"poor"')) for said in (real, invented)]
            told = [scene.told(scene.poor, method, path, each, ["free", "invented"]) for each in sent]
            assert told[0] == told[1], (path, real)
            assert "quota.slices" in told[0][1]


def test_others_vms_ties_and_reservations_look_like_none(scene: Scene) -> None:
    real_vm, nobody = scene.there["vm"], str(uuid4())
    for (method, path), body in CLAIMS.items():
        trial = path if path == "/v1/slices:explain" else f"{path}?validate_only=true"
        told = []
        for vm, key, reservation in ((real_vm, "train", scene.there["reservation"]), (nobody, "invented", nobody)):
            said: list[dict[str, Any]] = [{"reservation": reservation}] if "slices" in path else [{}]
            if "slices" in path:
                said += [{"vm_uuid": vm}, {"affinity": {"key": key}}, {"anti_affinity": {"key": key, "level": "gpu"}}]
            answers = [scene.told(scene.own, method, trial, body(each), [vm, key, reservation]) for each in said]
            told.append([(status, _same(text), headers, run) for status, text, headers, run in answers])
        assert told[0] == told[1], path


def test_a_slice_finds_no_host_by_being_moved(scene: Scene) -> None:
    held = scene.own.post("/v1/slices", CLAIM)
    path = f"/v1/slices/{held['id']}:move"
    for name in ("full", "cordoned", "fenced", "announced"):
        told = [scene.told(scene.own, "POST", path, {"host": each}, [name, "invented"]) for each in (name, "invented")]
        assert told[0] == told[1], name
        assert json.loads(told[0][1])["code"] == Code.CAPACITY_NONE


def _same(text: str) -> Any:
    """Removes the members that differ for each claim."""
    return json.loads(text, object_hook=lambda said: {key: said[key] for key in said if key != "id"})


def test_lists_do_not_tell_which_hosts_and_vms_there_are(scene: Scene) -> None:
    for (method, path), names in LISTS.items():
        for name in names:
            real, invented = ("full", "invented") if name == "host" else (scene.there["vm"], str(uuid4()))
            told = [scene.told(scene.own, method, f"{path}?{name}={each}", None, [each]) for each in (real, invented)]
            assert told[0][:3] == told[1][:3], path
            assert len(told[0][3]) == len(told[1][3]), path


def test_whatever_is_others_answers_as_what_is_not_there(cloud: Cloud) -> None:
    """Every route of the matrix at which another tenant finds nothing, by paths and bodies."""
    cast = cast_of(cloud)
    statements: list[str] = []
    event.listen(cloud.database.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    look_up(cast.callers["other"])
    scene = Scene(cloud, cast.callers["own"], cast.callers["other"], {}, statements)
    invented = {name: uuid4() for name in cast.names}
    asked = 0
    for (method, route), row in ROUTES.items():
        if row.other != Code.OBJECT_UNKNOWN:
            continue
        asked += 1
        told = []
        for names, tenant in ((cast.names, "web"), (invented, "gost")):
            path = row.path.format(**names).replace("/web", f"/{tenant}")
            body = json.loads(json.dumps(row.body()).replace('"web"', f'"{tenant}"'))
            told.append(scene.told(cast.callers["other"], method, path, body, [tenant, *map(str, names.values())]))
        assert told[0] == told[1], (method, route)
    assert asked >= 10


def test_no_member_or_parameter_that_tells_is_missed_here(cloud: Cloud) -> None:
    app: Any = cloud.http.app
    said = json.loads(document.text(app))
    schemas = said["components"]["schemas"]

    def members(schema: Any) -> set[str]:
        found = set(schema.get("properties", ()))
        for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)):
            found |= members(schemas[name])
        return found

    bodies, parameters = set(), {}
    for (method, route), row in ROUTES.items():
        if row.own in (Code.PERMISSION_DENIED, Code.AUTH_INVALID):
            continue
        operation = said["paths"][route][method.lower()]
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if members(body) & TELLING:
            bodies.add((method, route))
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"} & TELLING
        if named:
            parameters[method, route] = tuple(sorted(named))
    assert bodies == {*CLAIMS, MOVE}
    assert parameters == LISTS
