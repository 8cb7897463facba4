# SPDX-License-Identifier: Apache-2.0
"""A refusal to a known caller leaves an audit entry without secrets, and the number of entries is bounded."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.edge.refused import AGAIN_S, Refused

from tests.api.conftest import Clock
from tests.api.http.cloud import Caller, Cloud
from vgpumgr.wire.problem import Code

PLENTY = {"share_permille": 9000, "mem_bytes": 1 << 40, "slices": 9}


@pytest.fixture
def later(cloud: Cloud) -> Callable[[float], None]:
    """Advances the clock that counts refusals."""
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    application: Any = cloud.http.app
    application.state.refused = Refused(cloud.database.run, clock=lambda: now[0])
    return wait


def entries(cloud: Cloud) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cloud.admin.get("/v1/audit?action=request.refused")["items"]
    return found


def test_who_lacks_the_permission_is_noted(cloud: Cloud) -> None:
    red = cloud.tenant("red")
    red.refused(Code.PERMISSION_DENIED, "DELETE", "/v1/hosts/h1", headers={"If-Match": '"1"', "X-Request-Id": "r-1"})
    [entry] = entries(cloud)
    assert (entry["actor"], entry["role"], entry["tenant"]) == ("tenant:red", "tenant", "red")
    assert (entry["object"], entry["detail"]) == ("DELETE /v1/hosts/h1", {"code": "permission.denied"})
    assert entry["request_id"] == "r-1"
    assert entry["credential"] in {each["id"] for each in cloud.operator.get("/v1/tokens?role=tenant")["items"]}
    assert "request.refused" not in {each["kind"] for each in cloud.operator.get("/v1/events")["items"]}


def test_who_lacks_a_scope_is_noted(cloud: Cloud) -> None:
    bound = cloud.token(role="operator", scopes=["tenants:read"])
    bound.refused(Code.PERMISSION_DENIED, "POST", "/v1/tenants", {"name": "x"})
    [entry] = entries(cloud)
    assert (entry["object"], entry["role"]) == ("POST /v1/tenants", "operator")


def test_claims_over_quota_are_noted_with_what_was_short_but_rehearsals_are_not(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **(PLENTY | {"slices": 0}))
    claim = {"tenant": "red", "profile": "half"}
    red.refused(Code.QUOTA_EXCEEDED, "POST", "/v1/slices?validate_only=true", claim)
    assert entries(cloud) == []
    red.refused(Code.QUOTA_EXCEEDED, "POST", "/v1/slices?validate_only=false", claim)
    [entry] = entries(cloud)
    assert (entry["actor"], entry["object"]) == ("tenant:red", "POST /v1/slices")
    assert entry["detail"] == {"code": "quota.exceeded", "reasons": ["quota.slices"]}


def test_a_token_that_has_ended_and_a_host_that_was_fenced_are_known(cloud: Cloud, clock: Clock) -> None:
    ended = cloud.token(role="operator", expires_in_s=60)
    host = cloud.host("h1")
    etag = cloud.operator("GET", "/v1/hosts/h1").headers["etag"]
    fence = {"confirm": "h1", "force": True}
    cloud.operator.ok("POST", "/v1/hosts/h1:fence", 200, fence, headers={"If-Match": etag})
    clock.now += timedelta(seconds=61)
    ended.refused(Code.AUTH_EXPIRED, "GET", "/v1/tenants")
    host.refused(Code.HOST_FENCED, "GET", "/v1/hosts/h1/desired")
    expired, fenced = entries(cloud)
    assert (expired["detail"]["code"], expired["role"]) == ("auth.expired", "operator")
    assert (fenced["detail"]["code"], fenced["actor"]) == ("host.fenced", "host:h1")
    assert fenced["object"] == "GET /v1/hosts/h1/desired"


def test_nobody_and_what_is_refused_for_other_reasons_are_not(cloud: Cloud) -> None:
    Caller(cloud.http, "vgpu_" + "x" * 43).refused(Code.AUTH_INVALID, "GET", "/v1/tenants")
    cloud.nobody.refused(Code.AUTH_REQUIRED, "GET", "/v1/tenants")
    cloud.operator.refused(Code.OBJECT_UNKNOWN, "GET", "/v1/tenants/x")
    cloud.operator.refused(Code.FIELD_INVALID, "POST", "/v1/tenants", {"name": "X"})
    assert entries(cloud) == []


def test_a_secret_in_the_wrong_place_is_not_noted(cloud: Cloud) -> None:
    secret = cloud.operator.post("/v1/tokens", {"role": "viewer"})["secret"]
    viewer = Caller(cloud.http, secret)
    viewer.refused(Code.PERMISSION_DENIED, "DELETE", f"/v1/tokens/{uuid4()}?validate_only={secret[:0]}true")
    cloud.token(role="operator", scopes=["tenants:read"]).refused(
        Code.PERMISSION_DENIED, "GET", f"/v1/slices/{secret}?tenant={secret}", headers={"User-Agent": secret}
    )
    noted = entries(cloud)
    assert [each["object"].partition(" ")[2].split("/")[2] for each in noted] == ["tokens", "slices"]
    assert noted[1]["object"] == "GET /v1/slices/{slice_id}"
    assert secret not in str(noted)


def test_the_same_again_is_counted_and_told_an_hour_later(cloud: Cloud, later: Callable[[float], None]) -> None:
    red, blue = cloud.tenant("red"), cloud.tenant("blue")
    for _ in range(5):
        red.refused(Code.PERMISSION_DENIED, "GET", "/v1/hosts")
    blue.refused(Code.PERMISSION_DENIED, "GET", "/v1/hosts")
    red.refused(Code.PERMISSION_DENIED, "GET", "/v1/gpus")
    assert [(each["actor"], each["object"]) for each in entries(cloud)] == [
        ("tenant:red", "GET /v1/hosts"),
        ("tenant:blue", "GET /v1/hosts"),
        ("tenant:red", "GET /v1/gpus"),
    ]
    later(AGAIN_S - 1)
    red.refused(Code.PERMISSION_DENIED, "GET", "/v1/hosts")
    assert len(entries(cloud)) == 3
    later(1)
    red.refused(Code.PERMISSION_DENIED, "GET", "/v1/hosts")
    assert entries(cloud)[-1]["detail"] == {"code": "permission.denied", "more_before": 5}


def test_an_audit_that_cannot_be_written_changes_no_answer(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    def gone(_: Any) -> None:
        raise ConnectionError

    application: Any = cloud.http.app
    application.state.refused = Refused(gone)
    cloud.tenant("red").refused(Code.PERMISSION_DENIED, "GET", "/v1/hosts")
    assert "the audit lacks that tenant:red was refused: GET /v1/hosts" in caplog.text
