# SPDX-License-Identifier: Apache-2.0
"""validate_only: the same answers and refusals as the real request, but nothing is stored."""

from typing import Any

from sqlalchemy import text

from tests.api.http.cloud import GIB, Caller, Cloud
from vgpumgr.wire.problem import Code

PLENTY = {"share_permille": 900, "mem_bytes": 9 * GIB, "slices": 9}
TRY = "?validate_only=true"


def everything(cloud: Cloud) -> dict[str, list[Any]]:
    """Returns every row of these tables; events are left out, because reading them numbers them."""
    with cloud.database.engine.connect() as connection:
        tables = ("tenants", "quotas", "profiles", "hosts", "gpus", "slices", "tokens", "audit", "idempotency_keys")
        tables += ("gpu_labels", "host_labels", "quota_profiles", "reservations", "holds", "operations")
        return {
            name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name} ORDER BY 1"))]
            for name in tables
        }


def test_what_would_come_of_it_is_answered_and_nothing_is_kept(cloud: Cloud) -> None:
    cloud.host("h1")
    acme = cloud.tenant("acme", **PLENTY)
    cloud.tenant("empty")
    cloud.profile("p1", 100)
    cloud.profile("unused", 100)
    claimed = acme.post("/v1/slices", {"tenant": "acme", "profile": "p1"})
    held = acme.post("/v1/reservations", {"tenant": "acme", "profile": "p1", "places": 2, "expires_in_s": 600})
    operator = cloud.operator
    before = everything(cloud)

    def tried(
        who: Caller, method: str, path: str, body: Any = None, *, status: int = 200, match: bool = False, key: str = ""
    ) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        if match:
            headers["If-Match"] = who("GET", path.partition(":")[0]).headers["etag"]
        answer = who(method, path + TRY, body, headers=headers)
        assert answer.status_code == status, answer.text
        assert "location" not in answer.headers
        assert "etag" not in answer.headers
        assert everything(cloud) == before
        return answer.json() if answer.content else None

    assert tried(operator, "POST", "/v1/tenants", {"name": "blue"}, key="a")["name"] == "blue"
    assert tried(operator, "POST", "/v1/profiles", {"name": "p2", "share_permille": 1, "mem_bytes": 1}, key="b")["mode"]
    changed = tried(operator, "PATCH", "/v1/quotas/acme", {"slices": 3}, match=True)
    assert (changed["slices"], changed["generation"]) == (3, operator.get("/v1/quotas/acme")["generation"] + 1)
    assert tried(operator, "PATCH", "/v1/hosts/h1", {"state": "cordoned"}, match=True)["state"] == "cordoned"
    assert tried(operator, "POST", "/v1/hosts/h1:confirm-epoch")["epoch_confirmed"] is True
    fenced = tried(operator, "POST", "/v1/hosts/h1:fence", {"confirm": "h1", "force": True}, match=True)
    assert fenced["fenced_at"] is not None
    assert tried(acme, "DELETE", f"/v1/slices/{claimed['id']}", match=True)["state"] == "releasing"
    want = {"tenant": "acme", "profile": "p1", "places": 1, "expires_in_s": 600}
    assert tried(acme, "POST", "/v1/reservations", want, key="c")["places_left"] == 1
    tried(acme, "DELETE", f"/v1/reservations/{held['id']}", status=204, match=True)
    want = {"tenant": "acme", "profile": "p1", "reservation": held["id"]}
    assert tried(acme, "POST", "/v1/slices", want)["host"] == "h1"
    [gpu] = operator.get("/v1/gpus")["items"]
    assert tried(operator, "PATCH", f"/v1/gpus/{gpu['id']}", {"labels": {"zone": "a"}}, match=True)["generation"] == 2
    for verb, state in (("cordon", "cordoned"), ("uncordon", "ready"), ("maintenance", "maintenance")):
        assert tried(operator, "POST", f"/v1/hosts/h1:{verb}", match=True)["state"] == state
    drain = tried(operator, "POST", "/v1/hosts/h1:drain", {}, match=True, key="d")
    assert (drain["state"], drain["progress"]["left"]) == ("running", 1)
    operator.refused(Code.OBJECT_UNKNOWN, "GET", f"/v1/operations/{drain['id']}")
    [token] = [each for each in operator.get("/v1/tokens")["items"] if each["subject"] == "empty"]
    tried(operator, "DELETE", f"/v1/tokens/{token['id']}", status=204)
    tried(operator, "DELETE", "/v1/tenants/empty", status=204, match=True)
    tried(operator, "DELETE", "/v1/profiles/unused", status=204, match=True)

    etag = operator("GET", "/v1/hosts/h1").headers["etag"]
    begun = operator.ok("POST", "/v1/hosts/h1:drain", 202, {}, headers={"If-Match": etag})
    before = everything(cloud)
    path = f"/v1/operations/{begun['id']}:cancel"
    assert tried(operator, "POST", path, {"undo": True})["state"] == "cancelled"
    assert operator.get(path.partition(":")[0])["state"] == "running"

    # The dry run used neither the key nor the name: both are still free.
    assert operator.post("/v1/tenants", {"name": "blue"}, headers={"Idempotency-Key": "a"})["name"] == "blue"


def test_it_is_refused_as_it_would_be(cloud: Cloud) -> None:
    cloud.host("h1")
    acme = cloud.tenant("acme", **PLENTY)
    cloud.profile("p1", 100)
    acme.post("/v1/slices", {"tenant": "acme", "profile": "p1"})
    stale = {"If-Match": '"99"'}
    operator = cloud.operator
    for code, who, method, path, body, headers in (
        (Code.OBJECT_EXISTS, operator, "POST", "/v1/tenants", {"name": "acme"}, {}),
        (Code.PERMISSION_DENIED, acme, "POST", "/v1/tenants", {"name": "blue"}, {}),
        (Code.OBJECT_IN_USE, operator, "DELETE", "/v1/tenants/acme", None, {}),
        (Code.GENERATION_STALE, operator, "PATCH", "/v1/quotas/acme", {"slices": 3}, stale),
        (Code.GENERATION_REQUIRED, operator, "PATCH", "/v1/hosts/h1", {"state": "cordoned"}, {}),
        (Code.OBJECT_UNKNOWN, operator, "POST", "/v1/hosts/h9:confirm-epoch", None, {}),
        (Code.FIELD_INVALID, operator, "POST", "/v1/profiles", {"name": "p2", "share_permille": 0, "mem_bytes": 1}, {}),
    ):
        before = everything(cloud)
        who.refused(code, method, path + TRY, body, headers=headers)
        after = everything(cloud)
        noted = after["audit"][len(before["audit"]) :]
        before["audit"] += noted
        assert after == before
        assert [entry[2] for entry in noted] == (["request.refused"] if code is Code.PERMISSION_DENIED else [])
    operator.refused(Code.FIELD_INVALID, "POST", "/v1/tenants?validate_only=perhaps", {"name": "blue"})


def test_who_asks_for_a_trial_in_the_body_does_nothing_for_good(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.tenant("acme")
    etag = {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
    said = {"validate_only": True}
    cloud.operator.refused(Code.BODY_INVALID, "POST", "/v1/hosts/h1:maintenance", said, headers=etag)
    cloud.operator.refused(Code.BODY_INVALID, "DELETE", "/v1/tenants/acme", said)
    assert cloud.operator.get("/v1/hosts/h1")["state"] == "ready"
    assert cloud.operator.get("/v1/tenants/acme")["name"] == "acme"
    # An empty object counts as no body, because some programs send one with each POST.
    assert cloud.operator.ok("POST", "/v1/hosts/h1:maintenance", 200, {}, headers=etag)["state"] == "maintenance"


FOR_GOOD = {
    **dict.fromkeys(("create_host", "reenroll", "create_token", "enroll"), "answers with a secret"),
    **dict.fromkeys(("renew_certificate", "report", "heartbeat", "meter", "bind"), "is a host's agent's"),
    "explain_slice": "changes nothing",
}


def test_everything_that_changes_something_can_be_tried_unless_there_is_a_reason(cloud: Cloud) -> None:
    for methods in cloud.operator.get("/openapi.json")["paths"].values():
        for method, operation in methods.items():
            if method != "get":
                named = {each["name"] for each in operation.get("parameters", ())}
                assert ("validate_only" in named) != (operation["operationId"] in FOR_GOOD), operation["operationId"]
