# SPDX-License-Identifier: Apache-2.0
"""Every caller asks every route. The routes come from the application; a route that the table lacks makes the test
fail.

The cloud: account ``acme`` with project ``web``, whose slice is on host ``h1``. Account ``blue`` and host ``h2`` are
unrelated to them. An authorized change mostly ends at an outdated ETag or an existing name, so one cloud serves all
rows; the rows that really change something come last.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import event
from vgpumgr_api.edge.strict import Route

from tests.api.conftest import Clock
from tests.api.http.cloud import GIB, Caller, Cloud, Host
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import SCOPED

# Permissions are decided above the database layer; services/test_authority checks ownership on both engines.
pytestmark = pytest.mark.sqlite_long

CALLERS = (
    *("nobody", "expired", "revoked", "other_host", "own_host", "other", "own", "account", "own_admin", "own_viewer"),
    *("viewer", "operator", "admin"),
)
OK = "ok"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The outcome for each caller. By default, an admin gets an operator's outcome, and a tenant-admin gets its
    service's. A viewer, of everything or of a tenant, gets the same outcome for a GET and is denied otherwise.

    `path` may contain ``{slice}``, ``{host}``, ``{gpu}``, ``{operation}``, ``{reservation}`` and ``{token}``.
    """

    path: str
    operator: str
    own: str
    account: str
    other: str
    own_host: str
    other_host: str
    admin: str = ""
    viewer: str = ""
    own_admin: str = ""
    own_viewer: str = ""
    body: Callable[[], Any] = lambda: None
    headers: dict[str, str] = field(default_factory=dict)
    nobody: str = Code.AUTH_REQUIRED
    expired: str = Code.AUTH_EXPIRED
    revoked: str = Code.AUTH_INVALID

    def outcome(self, name: str, *, reads: bool) -> str:
        """Returns the outcome for the caller `name`."""
        said: str = getattr(self, name)
        if said:
            return said
        if name in ("viewer", "own_viewer") and not reads:
            return Code.PERMISSION_DENIED
        like = {"admin": self.operator, "viewer": self.operator, "own_admin": self.own, "own_viewer": self.own}
        return like[name]


def public(path: str) -> Row:
    return Row(path=path, **dict.fromkeys(CALLERS, OK))


def operators(path: str, outcome: str = OK, **more: Any) -> Row:
    """A row for operators only."""
    others = dict.fromkeys(("own", "account", "other", "own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, operator=outcome, **others, **more)


def people(path: str, **more: Any) -> Row:
    """A row for operators and all tenants, which see their own part of a list."""
    seen = dict.fromkeys(("operator", "own", "account", "other"), OK)
    return Row(path=path, **seen, **dict.fromkeys(("own_host", "other_host"), Code.PERMISSION_DENIED), **more)


def owners(path: str, outcome: str = OK, **more: Any) -> Row:
    """A row for operators, the project and its account; for other tenants the object does not exist."""
    seen = dict.fromkeys(("operator", "own", "account"), outcome)
    hosts = dict.fromkeys(("own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, **seen, **hosts, other=Code.OBJECT_UNKNOWN, **more)


def admins(path: str, **more: Any) -> Row:
    """A row for admins only."""
    others = dict.fromkeys(("operator", "own", "account", "other", "own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, admin=OK, **others, **more)


def agents(path: str, outcome: str = OK, **more: Any) -> Row:
    """A row for the agent of that host only; for other hosts the object does not exist."""
    people = dict.fromkeys(("operator", "own", "account", "other"), Code.PERMISSION_DENIED)
    return Row(path=path, **people, own_host=outcome, other_host=Code.OBJECT_UNKNOWN, **more)


def empty_report() -> Any:
    said: dict[str, Any] = {"gpus": [], "groups": [], "slices": [], "refusals": []}
    said |= {"boot_id": str(uuid4()), "agent_epoch": 1, "seq": 1, "agent_version": "1"}
    return said | {"desired_epoch": None, "desired_generation": 0}


def empty_readings() -> Any:
    return {"meter_id": str(uuid4()), "after": 0, "through": 0, "newest": 0, "readings": []}


STALE = {"If-Match": '"999999"'}
PROFILE = {"name": "p1", "share_permille": 100, "mem_bytes": GIB}
RESERVATION = {"tenant": "web", "profile": "p1", "places": 1, "expires_in_s": 600}
VM = str(uuid4())
DAY = "since=2026-11-21T00:00:00Z&until=2026-11-22T00:00:00Z"

ROUTES: dict[tuple[str, str], Row] = {
    ("GET", "/"): public("/"),
    ("GET", "/v1/health"): public("/v1/health"),
    ("GET", "/v1/health/live"): public("/v1/health/live"),
    ("GET", "/openapi.json"): public("/openapi.json"),
    ("GET", "/v1/tenants"): people("/v1/tenants"),
    ("POST", "/v1/tenants"): operators("/v1/tenants", Code.OBJECT_EXISTS, body=lambda: {"name": "web"}),
    ("GET", "/v1/tenants/{name}"): owners("/v1/tenants/web"),
    ("PATCH", "/v1/tenants/{name}"): operators(
        "/v1/tenants/web", Code.GENERATION_STALE, headers=STALE, body=lambda: {"external_id": "web_prod"}
    ),
    ("DELETE", "/v1/tenants/{name}"): operators("/v1/tenants/web", Code.GENERATION_STALE, headers=STALE),
    ("GET", "/v1/quotas"): people("/v1/quotas"),
    ("GET", "/v1/quotas/{tenant}"): owners("/v1/quotas/web"),
    ("PATCH", "/v1/quotas/{tenant}"): operators(
        "/v1/quotas/web", Code.GENERATION_STALE, headers=STALE, body=lambda: {"slices": 9}
    ),
    ("GET", "/v1/profiles"): people("/v1/profiles"),
    ("POST", "/v1/profiles"): operators("/v1/profiles", Code.OBJECT_EXISTS, body=lambda: PROFILE),
    ("GET", "/v1/profiles/{name}"): people("/v1/profiles/p1"),
    ("DELETE", "/v1/profiles/{name}"): operators("/v1/profiles/p1", Code.GENERATION_STALE, headers=STALE),
    ("GET", "/v1/hosts"): operators("/v1/hosts"),
    ("POST", "/v1/hosts"): operators("/v1/hosts", Code.OBJECT_EXISTS, body=lambda: {"name": "h1"}),
    ("GET", "/v1/hosts/{name}"): operators("/v1/hosts/h1"),
    ("PATCH", "/v1/hosts/{name}"): operators(
        "/v1/hosts/h1", Code.GENERATION_STALE, headers=STALE, body=lambda: {"state": "cordoned"}
    ),
    ("DELETE", "/v1/hosts/{name}"): operators("/v1/hosts/h1", Code.GENERATION_STALE, headers=STALE),
    **{
        ("POST", f"/v1/hosts/{{name}}:{verb}"): operators(
            f"/v1/hosts/h1:{verb}", Code.GENERATION_STALE, headers=STALE, body=lambda body=body: body
        )
        for verb, body in (("cordon", None), ("uncordon", None), ("maintenance", None), ("drain", {}))
    },
    ("GET", "/v1/operations"): operators("/v1/operations"),
    ("GET", "/v1/operations/{operation_id}"): operators("/v1/operations/{operation}"),
    ("POST", "/v1/operations/{operation_id}:cancel"): operators(
        "/v1/operations/{operation}:cancel", Code.OPERATION_DONE, body=dict
    ),
    ("POST", "/v1/hosts/{name}:fence"): operators(
        "/v1/hosts/h1:fence", Code.GENERATION_STALE, headers=STALE, body=lambda: {"confirm": "h1"}
    ),
    ("POST", "/v1/hosts/{name}:confirm-epoch"): operators("/v1/hosts/h1:confirm-epoch"),
    ("GET", "/v1/gpus"): operators("/v1/gpus"),
    ("GET", "/v1/gpus/{gpu_id}"): operators("/v1/gpus/{gpu}"),
    ("PATCH", "/v1/gpus/{gpu_id}"): operators(
        "/v1/gpus/{gpu}", Code.GENERATION_STALE, headers=STALE, body=lambda: {"labels": {"zone": "a"}}
    ),
    ("POST", "/v1/gpus/{gpu_id}:rehome"): operators(
        "/v1/gpus/{gpu}:rehome", Code.GENERATION_STALE, headers=STALE, body=lambda: {"to": str(uuid4())}
    ),
    ("GET", "/v1/slices"): people("/v1/slices"),
    ("POST", "/v1/slices"): owners("/v1/slices?validate_only=true", body=lambda: {"tenant": "web", "profile": "p1"}),
    ("POST", "/v1/slices:batch"): owners(
        "/v1/slices:batch?validate_only=true", body=lambda: {"slices": [{"tenant": "web", "profile": "p1"}] * 2}
    ),
    ("POST", "/v1/slices:explain"): owners(
        "/v1/slices:explain", body=lambda: {"tenant": "web", "profile": "p1"}, viewer=OK, own_viewer=OK
    ),
    ("GET", "/v1/reservations"): people("/v1/reservations"),
    ("POST", "/v1/reservations"): owners("/v1/reservations", body=lambda: RESERVATION),
    ("GET", "/v1/reservations/{reservation_id}"): owners("/v1/reservations/{reservation}"),
    ("DELETE", "/v1/reservations/{reservation_id}"): owners(
        "/v1/reservations/{reservation}", Code.GENERATION_STALE, headers=STALE
    ),
    ("GET", "/v1/slices/{slice_id}"): owners("/v1/slices/{slice}"),
    ("DELETE", "/v1/slices/{slice_id}"): owners("/v1/slices/{slice}", Code.GENERATION_STALE, headers=STALE),
    ("POST", "/v1/slices/{slice_id}:move"): owners(
        "/v1/slices/{slice}:move", Code.GENERATION_STALE, headers=STALE, body=lambda: {"host": "h2"}
    ),
    ("POST", "/v1/slices/{slice_id}:abort-move"): owners(
        "/v1/slices/{slice}:abort-move", Code.GENERATION_STALE, headers=STALE
    ),
    ("GET", "/v1/usage"): people("/v1/usage"),
    ("GET", "/v1/usage/ledger"): people(f"/v1/usage/ledger?{DAY}"),
    ("GET", "/v1/usage/ledger.csv"): people(f"/v1/usage/ledger.csv?{DAY}"),
    ("GET", "/v1/usage/grants"): people(f"/v1/usage/grants?{DAY}"),
    ("GET", "/v1/usage/unbooked"): operators("/v1/usage/unbooked"),
    ("GET", "/v1/usage/unbooked.csv"): operators("/v1/usage/unbooked.csv"),
    ("GET", "/v1/tokens"): operators("/v1/tokens", viewer=Code.PERMISSION_DENIED, own_admin=OK),
    ("POST", "/v1/tokens"): operators(
        "/v1/tokens",
        body=lambda: {"role": "tenant", "subject": "blue", "expires_in_s": 60},
        own_admin=Code.OBJECT_UNKNOWN,
    ),
    ("GET", "/v1/events"): people("/v1/events"),
    ("GET", "/v1/events/watch"): people("/v1/events/watch?after=0"),
    ("GET", "/v1/audit"): admins("/v1/audit"),
    ("POST", "/v1/enroll"): Row(
        path="/v1/enroll",
        body=lambda: {"agent_version": "1", "boot_id": str(uuid4())},
        **(dict.fromkeys(CALLERS, Code.AUTH_INVALID) | {"nobody": Code.AUTH_REQUIRED}),
    ),
    ("GET", "/v1/hosts/{host}/desired"): agents("/v1/hosts/{host}/desired"),
    ("POST", "/v1/hosts/{host}/certificate"): agents(
        "/v1/hosts/{host}/certificate", Code.CA_ABSENT, body=lambda: {"csr": "x"}
    ),
    ("POST", "/v1/hosts/{host}/report"): agents("/v1/hosts/h1/report", body=empty_report),
    ("POST", "/v1/hosts/{host}/heartbeat"): agents(
        "/v1/hosts/{host}/heartbeat", body=lambda: {"boot_id": str(uuid4()), "agent_epoch": 1, "seq": 1}
    ),
    ("POST", "/v1/hosts/{host}/usage"): agents("/v1/hosts/{host}/usage", body=empty_readings),
    ("POST", "/v1/hosts/{host}/slices/{slice_id}:bind"): agents(
        "/v1/hosts/{host}/slices/{slice}:bind", body=lambda: {"vm_uuid": VM}
    ),
    # The token belongs to another tenant. The operator asks before the admin and deletes it.
    ("DELETE", "/v1/tokens/{token_id}"): operators(
        "/v1/tokens/{token}", admin=Code.OBJECT_UNKNOWN, own_admin=Code.OBJECT_UNKNOWN
    ),
    ("POST", "/v1/hosts/{name}:reenroll"): operators("/v1/hosts/h1:reenroll"),
}


@dataclass(frozen=True)
class Cast:
    callers: dict[str, Caller]
    host: Host
    slice_id: UUID
    token_id: UUID
    gpu_id: UUID
    operation_id: UUID
    reservation_id: UUID

    @property
    def names(self) -> dict[str, Any]:
        """The values for the placeholders of a row's path."""
        return {
            "host": self.host.id,
            "slice": self.slice_id,
            "token": self.token_id,
            "gpu": self.gpu_id,
            "operation": self.operation_id,
            "reservation": self.reservation_id,
        }


def cast_of(cloud: Cloud) -> Cast:
    application: Any = cloud.http.app
    application.state.feed.stop()  # event streams end at once
    own_host, other_host = cloud.host("h1"), cloud.host("h2", gpus=())
    plenty = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 9}
    account, other = cloud.tenant("acme", **plenty), cloud.tenant("blue", **plenty)
    own = cloud.tenant("web", account="acme", **plenty)
    cloud.operator.post("/v1/profiles", PROFILE)
    claimed = own.post("/v1/slices", {"tenant": "web", "profile": "p1"})
    held = own.post("/v1/reservations", RESERVATION)
    spare = cloud.operator.post("/v1/tokens", {"role": "tenant", "subject": "blue"})

    made = cloud.operator.post("/v1/tokens", {"role": "operator"})
    cloud.operator.ok("DELETE", f"/v1/tokens/{made['id']}", 204)
    clock = cloud.database.clock
    cloud.database.clock = lambda: clock() - timedelta(hours=1)
    expired = cloud.token(role="operator", expires_in_s=3599)
    cloud.database.clock = clock
    callers = {
        "nobody": cloud.nobody,
        "expired": expired,
        "revoked": Caller(cloud.http, made["secret"]),
        "own": own,
        "account": account,
        "other": other,
        "own_host": own_host,
        "other_host": other_host,
        "own_admin": cloud.token(role="tenant-admin", subject="web"),
        "own_viewer": cloud.token(role="viewer", subject="web"),
        "viewer": cloud.token(role="viewer"),
        "operator": cloud.operator,
        "admin": cloud.admin,
    }
    cloud.host("h3", gpus=())
    generation = cloud.operator.get("/v1/hosts/h3")["generation"]
    drained = cloud.operator.ok("POST", "/v1/hosts/h3:drain", 202, {}, headers={"If-Match": f'"{generation}"'})
    ids = [UUID(each) for each in (claimed["id"], spare["id"], claimed["gpu_id"], drained["id"], held["id"])]
    return Cast(callers, own_host, *ids)


def test_the_table_names_every_route_and_no_other(cloud: Cloud) -> None:
    routes: Any = cloud.http.app
    found = {
        (method, route.path_format)
        for route in routes.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert len(found) == len(routes.routes), "a route that is not FastAPI's is not covered"
    assert set(ROUTES) == found


def test_everybody_reaches_what_is_theirs_and_nothing_else(cloud: Cloud) -> None:
    cast = cast_of(cloud)
    expected, found = {}, {}
    for (method, route), row in ROUTES.items():
        for name in CALLERS:
            response = cast.callers[name](method, row.path.format(**cast.names), row.body(), headers=row.headers)
            outcome = OK if response.status_code < 300 else response.json()["code"]
            expected[f"{method} {route} {name}"] = row.outcome(name, reads=method == "GET")
            found[f"{method} {route} {name}"] = outcome
    assert found == expected


@pytest.mark.parametrize(
    ("method", "path", "body", "who"),
    [
        ("GET", "/v1/tokens", None, "an operator's token, or that of a tenant's admin"),
        ("POST", "/v1/tokens", {"role": "viewer"}, "an operator's token, or that of a tenant's admin"),
        (
            "PATCH",
            "/v1/quotas/acme",
            {"timeslice_us": 1000},
            "an operator's token, or for timeslice_us alone that of a tenant's admin",
        ),
        ("POST", "/v1/hosts", {"name": "h1"}, "an operator's token"),
    ],
)
def test_who_may_not_is_told_who_may(cloud: Cloud, method: str, path: str, body: Any, who: str) -> None:
    assert cloud.tenant("acme").refused(Code.PERMISSION_DENIED, method, path, body).detail == f"this needs {who}"


def test_lists_show_nothing_of_others(cloud: Cloud, clock: Clock) -> None:
    cast = cast_of(cloud)
    clock.advance(5)  # the ledger omits a claim whose life has no duration
    shown = (
        *("/v1/tenants", "/v1/quotas", "/v1/slices", "/v1/reservations", "/v1/events"),
        *(f"/v1/usage/{kind}?{DAY}" for kind in ("ledger", "ledger.csv", "grants")),
    )
    for path in (*shown, "/v1/usage", "/v1/events/watch?after=0"):
        said = cast.callers["other"]("GET", path).text
        assert not any(word in said for word in ("acme", "web", str(cast.slice_id))), path
    for name in ("own", "account"):
        for path in shown:
            said = cast.callers[name]("GET", path).text
            assert "web" in said, path
            assert "blue" not in said, path
    assert "acme" not in [each["name"] for each in cast.callers["own"].get("/v1/tenants")["items"]]


def test_operators_neither_make_nor_end_tokens_of_admins(cloud: Cloud) -> None:
    wanted = {"role": "admin"}
    cloud.operator.refused(Code.PERMISSION_DENIED, "POST", "/v1/tokens", wanted)
    made = cloud.admin.post("/v1/tokens", wanted)
    assert made["id"] in [each["id"] for each in cloud.operator.get("/v1/tokens")["items"]]
    cloud.operator.refused(Code.PERMISSION_DENIED, "DELETE", f"/v1/tokens/{made['id']}")
    cloud.admin.ok("DELETE", f"/v1/tokens/{made['id']}", 204)
    Caller(cloud.http, made["secret"]).refused(Code.AUTH_INVALID, "GET", "/v1/audit")


def test_the_audit_says_who_asked_from_where_with_which_request(cloud: Cloud) -> None:
    made = cloud.operator.ok("POST", "/v1/tenants", 201, {"name": "acme"}, headers={"X-Request-Id": "order-1"})
    own = cloud.token(role="tenant", subject="acme")
    own.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/slices", {"tenant": "acme", "profile": "none"})
    host = cloud.host("h1")
    [entry] = cloud.admin.get("/v1/audit?request_id=order-1")["items"]
    assert entry["action"] == "tenant.created"
    assert entry["object"] == made["name"]
    assert (entry["generation"], entry["source"], entry["role"]) == (1, "testclient", "operator")
    tokens = cloud.operator.get("/v1/tokens")["items"]
    assert entry["credential"] in [each["id"] for each in tokens if each["role"] == "operator"]
    [enrolled] = cloud.admin.get("/v1/audit?action=host.enrolled")["items"]
    assert (enrolled["actor"], enrolled["source"], enrolled["generation"]) == ("host:h1", "testclient", 2)
    assert cloud.admin.get("/v1/audit?actor=host:h1&action=gpu.found")["items"][0]["source"] == "testclient"
    said = cloud.admin("GET", "/v1/audit").text
    for secret in (cloud.operator.token, own.token, host.token):
        assert secret
        assert secret not in said
    for query in ("since=yesterday", "since=2026-11-21T12:00:00", "colour=red", "tenant=A", "page_token=x"):
        cloud.admin.refused(Code.FIELD_INVALID, "GET", f"/v1/audit?{query}")


def test_every_route_has_a_scope_that_alone_opens_it(cloud: Cloud) -> None:
    """This holds for the strongest role: only its scopes restrict such a token."""
    cast = cast_of(cloud)
    routes: Any = cloud.http.app
    needed = {
        (method, route.path_format): route.scope(method)
        for route in routes.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert {each.partition(":")[0] for each in needed.values()} == set(SCOPED)
    every = sorted(f"{part}:{access}" for part in SCOPED for access in ("read", "write"))
    assert set(needed.values()) <= set(every)
    reading = {route for route, scope in needed.items() if scope.endswith(":read")}
    assert reading == {route for route in needed if route[0] == "GET"} | {("POST", "/v1/slices:explain")}
    for route, scope in needed.items():
        row = ROUTES[route]
        made = {
            name: cloud.admin.post("/v1/tokens", {"role": "admin", "scopes": scopes})["secret"]
            for name, scopes in (("with", [scope]), ("without", [each for each in every if each != scope]))
        }
        outcomes = {}
        for name, secret in made.items():
            answer = Caller(cloud.http, secret)(
                route[0], row.path.format(**cast.names), row.body(), headers=row.headers
            )
            outcomes[name] = "" if answer.status_code < 300 else str(answer.json()["detail"])
        assert "lacks the scope" in outcomes["without"], route
        assert "lacks the scope" not in outcomes["with"], route


def test_a_tenants_admin_gives_its_programs_tokens_that_end(cloud: Cloud) -> None:
    cast = cast_of(cloud)
    admin = cloud.token(role="tenant-admin", subject="acme")
    wanted = {"role": "tenant", "subject": "web", "expires_in_s": 600, "scopes": ["slices:read"]}
    made = admin.post("/v1/tokens", wanted)
    program = Caller(cloud.http, made["secret"])
    assert [each["id"] for each in program.get("/v1/slices")["items"]] == [str(cast.slice_id)]
    program.refused(Code.PERMISSION_DENIED, "DELETE", f"/v1/slices/{cast.slice_id}")
    program.refused(Code.PERMISSION_DENIED, "POST", "/v1/tokens", wanted)

    for senseless, code in (
        ({"expires_in_s": None}, Code.FIELD_INVALID),
        ({"expires_in_s": 367 * 86400}, Code.FIELD_INVALID),
        ({"scopes": ["slices"]}, Code.FIELD_INVALID),
        ({"scopes": []}, Code.FIELD_INVALID),
        ({"role": "tenant-admin"}, Code.PERMISSION_DENIED),
        ({"role": "operator", "subject": None}, Code.PERMISSION_DENIED),
        ({"role": "viewer", "subject": None}, Code.PERMISSION_DENIED),
        ({"subject": "blue"}, Code.OBJECT_UNKNOWN),
        ({"subject": "nobody"}, Code.OBJECT_UNKNOWN),
    ):
        admin.refused(code, "POST", "/v1/tokens", wanted | senseless)

    listed = admin.get("/v1/tokens")["items"]
    assert {each["subject"] for each in listed} == {"acme", "web"}
    assert made["id"] in [each["id"] for each in listed]
    [of_operators] = [each["id"] for each in listed if (each["role"], each["subject"]) == ("tenant-admin", "acme")]
    admin.refused(Code.PERMISSION_DENIED, "DELETE", f"/v1/tokens/{of_operators}")
    admin.refused(Code.OBJECT_UNKNOWN, "DELETE", f"/v1/tokens/{cast.token_id}")
    admin.ok("DELETE", f"/v1/tokens/{made['id']}", 204)
    program.refused(Code.AUTH_INVALID, "GET", "/v1/slices")


def test_scopes_are_passed_on_only_in_part_and_for_no_longer(cloud: Cloud) -> None:
    own = {"role": "operator", "scopes": ["tokens:write", "slices:read", "quotas:read"], "expires_in_s": 3600}
    maker = cloud.token(**own)
    less = {"role": "viewer", "scopes": ["slices:read"], "expires_in_s": 600}
    assert Caller(cloud.http, maker.post("/v1/tokens", less)["secret"]).get("/v1/slices")["items"] == []
    maker.refused(Code.PERMISSION_DENIED, "POST", "/v1/tokens", less | {"scopes": ["slices:read", "hosts:read"]})
    maker.refused(Code.PERMISSION_DENIED, "POST", "/v1/tokens", less | {"scopes": None})
    for more in ({"role": "operator"}, {"role": "operator", "scopes": ["slices:read", "hosts:read"]}):
        theirs = cloud.operator.post("/v1/tokens", more)["id"]
        maker.refused(Code.PERMISSION_DENIED, "DELETE", f"/v1/tokens/{theirs}")
    maker.ok("DELETE", f"/v1/tokens/{maker.post('/v1/tokens', less)['id']}", 204)
    maker.post("/v1/tokens", less | {"expires_in_s": 3600})
    maker.refused(Code.FIELD_INVALID, "POST", "/v1/tokens", less | {"expires_in_s": 3601})
    maker.refused(Code.FIELD_INVALID, "POST", "/v1/tokens", less | {"expires_in_s": None})


@pytest.mark.parametrize("own", [{"role": "operator"}, {"role": "tenant-admin", "subject": "acme"}])
def test_a_token_that_ends_passes_nothing_on_for_longer(cloud: Cloud, clock: Clock, own: dict[str, Any]) -> None:
    cloud.tenant("acme")
    maker = cloud.token(**own, expires_in_s=3600)
    clock.advance(600)
    wanted = {"role": "tenant", "subject": "acme"}
    maker.post("/v1/tokens", wanted | {"expires_in_s": 3000})
    maker.refused(Code.FIELD_INVALID, "POST", "/v1/tokens", wanted | {"expires_in_s": 3001})
    maker.refused(Code.FIELD_INVALID, "POST", "/v1/tokens", wanted | {"expires_in_s": None})
    cloud.operator.post("/v1/tokens", wanted)


def test_what_is_others_costs_as_much_as_what_is_not_there(cloud: Cloud) -> None:
    """The same words except for the name, and the same number of statements."""
    cast = cast_of(cloud)
    asked: list[str] = []
    event.listen(cloud.database.engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))
    other, ghost = cast.callers["other"], str(uuid4())
    admin = cloud.token(role="tenant-admin", subject="blue")
    spare = cloud.operator.post("/v1/tokens", {"role": "tenant", "subject": "web"})["id"]
    claim = {"tenant": "web", "profile": "p1"}
    token = {"role": "tenant", "subject": "web", "expires_in_s": 60}
    for who, method, path, body, theirs, none in (
        (other, "GET", "/v1/tenants/web", None, "web", "gost"),
        (other, "GET", "/v1/quotas/web", None, "web", "gost"),
        (other, "GET", f"/v1/slices/{cast.slice_id}", None, str(cast.slice_id), ghost),
        (other, "DELETE", f"/v1/slices/{cast.slice_id}", None, str(cast.slice_id), ghost),
        (other, "POST", "/v1/slices", claim, "web", "gost"),
        (other, "POST", "/v1/slices?validate_only=true", claim, "web", "gost"),
        (other, "GET", "/v1/slices?tenant=web", None, "web", "gost"),
        (other, "GET", "/v1/usage?tenant=web", None, "web", "gost"),
        (admin, "DELETE", f"/v1/tokens/{spare}", None, spare, ghost),
        (admin, "POST", "/v1/tokens", token, "web", "gost"),
        (cast.callers["other_host"], "GET", "/v1/hosts/h1/desired", None, "h1", "h9"),
    ):
        said, cost = [], []
        for named in (theirs, none):
            asked.clear()
            sent = json.loads(json.dumps(body).replace(theirs, named))
            problem = who.refused(
                Code.OBJECT_UNKNOWN, method, path.replace(theirs, named), sent, headers={"X-Request-Id": "r"}
            )
            said.append(problem.model_dump_json().replace(named, "NAME"))
            cost.append(len(asked))
        assert said[0] == said[1], path
        assert cost[0] == cost[1], path
