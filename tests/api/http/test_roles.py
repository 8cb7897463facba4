# SPDX-License-Identifier: Apache-2.0
"""Every route asked by everybody. The routes come from the application: one that the table lacks is a failure.

The cloud: account ``acme`` with project ``web``, whose slice is on host ``h1``; account ``blue`` and host ``h2`` have
nothing to do with them. Who may change something is let as far as an ETag that is out of date or a name that is taken,
so that one cloud serves all; the rows that do change something come last.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from fastapi.routing import APIRoute

from tests.api.http.cloud import GIB, Caller, Cloud, Host
from vgpumgr.wire.problem import Code

CALLERS = (
    *("nobody", "expired", "revoked", "other_host", "own_host", "other", "own", "account", "own_admin", "own_viewer"),
    *("viewer", "operator", "admin"),
)
OK = "ok"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What each caller gets. Unless it is said an admin gets what an operator gets, a tenant's admin what its service
    gets, and a viewer, of all or of a tenant, the same if it is a GET and is denied if it is not.

    `path` may name ``{slice}``, ``{host}`` and ``{token}``.
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
        """What `name` gets."""
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
    """For operators only."""
    others = dict.fromkeys(("own", "account", "other", "own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, operator=outcome, **others, **more)


def people(path: str, **more: Any) -> Row:
    """For operators and all tenants, who see their own part of a list."""
    seen = dict.fromkeys(("operator", "own", "account", "other"), OK)
    return Row(path=path, **seen, **dict.fromkeys(("own_host", "other_host"), Code.PERMISSION_DENIED), **more)


def owners(path: str, outcome: str = OK, **more: Any) -> Row:
    """For operators, the project and its account; to other tenants it does not exist."""
    seen = dict.fromkeys(("operator", "own", "account"), outcome)
    hosts = dict.fromkeys(("own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, **seen, **hosts, other=Code.OBJECT_UNKNOWN, **more)


def admins(path: str, **more: Any) -> Row:
    """For admins only."""
    others = dict.fromkeys(("operator", "own", "account", "other", "own_host", "other_host"), Code.PERMISSION_DENIED)
    return Row(path=path, admin=OK, **others, **more)


def agents(path: str, **more: Any) -> Row:
    """For the agent of that host only; to other hosts it does not exist."""
    people = dict.fromkeys(("operator", "own", "account", "other"), Code.PERMISSION_DENIED)
    return Row(path=path, **people, own_host=OK, other_host=Code.OBJECT_UNKNOWN, **more)


def empty_report() -> Any:
    said: dict[str, Any] = {"gpus": [], "groups": [], "slices": [], "refusals": []}
    said |= {"boot_id": str(uuid4()), "agent_epoch": 1, "seq": 1, "agent_version": "1"}
    return said | {"desired_epoch": None, "desired_generation": 0}


STALE = {"If-Match": '"999999"'}
PROFILE = {"name": "p1", "share_permille": 100, "mem_bytes": GIB}
VM = str(uuid4())

ROUTES: dict[tuple[str, str], Row] = {
    ("GET", "/"): public("/"),
    ("GET", "/v1/health"): public("/v1/health"),
    ("GET", "/openapi.json"): public("/openapi.json"),
    ("GET", "/v1/tenants"): people("/v1/tenants"),
    ("POST", "/v1/tenants"): operators("/v1/tenants", Code.OBJECT_EXISTS, body=lambda: {"name": "web"}),
    ("GET", "/v1/tenants/{name}"): owners("/v1/tenants/web"),
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
    ("POST", "/v1/hosts/{name}:fence"): operators(
        "/v1/hosts/h1:fence", Code.GENERATION_STALE, headers=STALE, body=lambda: {"confirm": "h1"}
    ),
    ("POST", "/v1/hosts/{name}:confirm-epoch"): operators("/v1/hosts/h1:confirm-epoch"),
    ("GET", "/v1/gpus"): operators("/v1/gpus"),
    ("GET", "/v1/slices"): people("/v1/slices"),
    ("POST", "/v1/slices"): owners("/v1/slices?validate_only=true", body=lambda: {"tenant": "web", "profile": "p1"}),
    ("GET", "/v1/slices/{slice_id}"): owners("/v1/slices/{slice}"),
    ("DELETE", "/v1/slices/{slice_id}"): owners("/v1/slices/{slice}", Code.GENERATION_STALE, headers=STALE),
    ("GET", "/v1/usage"): people("/v1/usage"),
    ("GET", "/v1/tokens"): operators("/v1/tokens", viewer=Code.PERMISSION_DENIED),
    ("POST", "/v1/tokens"): operators("/v1/tokens", body=lambda: {"role": "tenant", "subject": "blue"}),
    ("GET", "/v1/events"): people("/v1/events"),
    ("GET", "/v1/audit"): admins("/v1/audit"),
    ("POST", "/v1/enroll"): Row(
        path="/v1/enroll",
        body=lambda: {"agent_version": "1", "boot_id": str(uuid4())},
        **(dict.fromkeys(CALLERS, Code.AUTH_INVALID) | {"nobody": Code.AUTH_REQUIRED}),
    ),
    ("GET", "/v1/hosts/{host}/desired"): agents("/v1/hosts/{host}/desired"),
    ("POST", "/v1/hosts/{host}/report"): agents("/v1/hosts/h1/report", body=empty_report),
    ("POST", "/v1/hosts/{host}/slices/{slice_id}:bind"): agents(
        "/v1/hosts/{host}/slices/{slice}:bind", body=lambda: {"vm_uuid": VM}
    ),
    # The operator comes first.
    ("DELETE", "/v1/tokens/{token_id}"): operators("/v1/tokens/{token}", admin=Code.OBJECT_UNKNOWN),
    ("POST", "/v1/hosts/{name}:reenroll"): operators("/v1/hosts/h1:reenroll"),
}


@dataclass(frozen=True)
class Cast:
    callers: dict[str, Caller]
    host: Host
    slice_id: UUID
    token_id: UUID


def cast_of(cloud: Cloud) -> Cast:
    own_host, other_host = cloud.host("h1"), cloud.host("h2", gpus=())
    plenty = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 9}
    account, other = cloud.tenant("acme", **plenty), cloud.tenant("blue", **plenty)
    own = cloud.tenant("web", account="acme", **plenty)
    cloud.operator.post("/v1/profiles", PROFILE)
    claimed = own.post("/v1/slices", {"tenant": "web", "profile": "p1"})
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
    return Cast(callers, own_host, UUID(claimed["id"]), UUID(spare["id"]))


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
    names = {"host": cast.host.id, "slice": cast.slice_id, "token": cast.token_id}
    expected, found = {}, {}
    for (method, route), row in ROUTES.items():
        for name in CALLERS:
            response = cast.callers[name](method, row.path.format(**names), row.body(), headers=row.headers)
            outcome = OK if response.status_code < 300 else response.json()["code"]
            expected[f"{method} {route} {name}"] = row.outcome(name, reads=method == "GET")
            found[f"{method} {route} {name}"] = outcome
    assert found == expected


def test_lists_show_nothing_of_others(cloud: Cloud) -> None:
    cast = cast_of(cloud)
    for path in ("/v1/tenants", "/v1/quotas", "/v1/slices", "/v1/usage", "/v1/events"):
        said = cast.callers["other"]("GET", path).text
        assert not any(word in said for word in ("acme", "web", str(cast.slice_id))), path
    for name in ("own", "account"):
        for path in ("/v1/tenants", "/v1/quotas", "/v1/slices", "/v1/events"):
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
