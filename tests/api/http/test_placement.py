# SPDX-License-Identifier: Apache-2.0
"""How a tenant finds room and reserves some for later, over HTTP."""

from datetime import timedelta

import pytest
from vgpumgr_api.app import create_app
from vgpumgr_api.claims import reservations
from vgpumgr_api.edge import expired
from vgpumgr_api.errors import Refusal

from tests.api.conftest import Clock
from tests.api.http.cloud import Caller, Cloud
from vgpumgr.wire.problem import Code

PLENTY = {"share_permille": 9000, "mem_bytes": 1 << 40, "slices": 100}


def test_a_tenant_is_told_why_and_where(cloud: Cloud) -> None:
    cloud.host("h1", gpus=("0000:03:00.0", "0000:04:00.0"))
    cloud.host("h2")
    own = cloud.tenant("acme", **PLENTY)
    cloud.profile("p", 600)
    cloud.operator.patch("/v1/hosts/h1", {"labels": {"zone": "a"}})
    [gpu] = cloud.operator.get("/v1/gpus?host=h2")["items"]
    told = cloud.operator.patch(f"/v1/gpus/{gpu['id']}", {"labels": {"zone": "b"}, "fair_ratio_permille": 2000})
    assert (told["labels"], told["fair_ratio_permille"], told["generation"]) == ({"zone": "b"}, 2000, 2)
    path = f"/v1/gpus/{gpu['id']}"
    cloud.operator.refused(Code.GENERATION_REQUIRED, "PATCH", path, {"labels": {"zone": "c"}})
    stale = {"If-Match": '"1"'}
    cloud.operator.refused(Code.GENERATION_STALE, "PATCH", path, {"labels": {"zone": "c"}}, headers=stale)
    for wrong in ({"fair_ratio_permille": 999}, {"labels": {"Zone": "a"}}, {"labels": None}, {"present": False}):
        said = cloud.operator.refused(Code.FIELD_INVALID, "PATCH", path, wrong, headers={"If-Match": '"2"'})
        assert said.reasons[0].field.startswith(f"$.{next(iter(wrong))}")

    want = {"tenant": "acme", "profile": "p", "selector": {"zone": "b"}}
    claimed = own.post("/v1/slices", want)
    assert (claimed["host"], claimed["enforcement"]["requested_permille"]) == ("h2", 300)
    want["selector"] = {"zone": "a"}
    said = own.post("/v1/slices:explain", want, status=200)
    assert (said["fits"], said["gpus"], said["fitting"], said["host"]) == (True, 3, 2, "h1")
    assert [(each["code"], each["count"]) for each in said["reasons"]] == [("labels.other", 1)]

    batch = {"slices": [want, want]}
    key = {"Idempotency-Key": "two"}
    tried = own.ok("POST", "/v1/slices:batch?validate_only=true", 200, batch)
    assert len(tried["slices"]) == 2
    made = own.post("/v1/slices:batch", batch, headers=key)
    assert own.post("/v1/slices:batch", batch, headers=key) == made
    assert len({each["gpu_id"] for each in made["slices"]}) == 2
    own.refused(Code.CAPACITY_NONE, "POST", "/v1/slices:batch", batch)
    said = own.refused(Code.FIELD_INVALID, "POST", "/v1/slices:batch", {"slices": [want, want | {"tenant": "x"}]})
    assert said.reasons[0].field == "$.slices[1].tenant"
    own.refused(Code.FIELD_INVALID, "POST", "/v1/slices:batch", {"slices": []})
    assert len(own.get("/v1/slices")["items"]) == 3


@pytest.mark.parametrize("asks_first", [False, True])
def test_a_reservation_ends_by_itself_though_nobody_was_there(cloud: Cloud, *, asks_first: bool) -> None:
    host = cloud.host("h1")
    own = cloud.tenant("acme", **PLENTY)
    other = cloud.tenant("blue", **PLENTY)
    cloud.profile("p", 1000)
    held = own.post("/v1/reservations", {"tenant": "acme", "profile": "p", "places": 1, "expires_in_s": 3600})
    path = f"/v1/reservations/{held['id']}"
    assert (held["places_left"], own.get(path)) == (1, held)
    other.refused(Code.OBJECT_UNKNOWN, "GET", path)
    other.refused(Code.OBJECT_UNKNOWN, "DELETE", path)
    want = {"tenant": "blue", "profile": "p"}
    other.refused(Code.CAPACITY_NONE, "POST", "/v1/slices", want)

    # The API is down when the hour ends, and restarts on the database that it left.
    begun = cloud.database.clock
    cloud.database.clock = lambda: begun() + timedelta(seconds=3600)
    again = Cloud(cloud.database, create_app(cloud.database))
    host.http = again.http
    assert host.report()
    own, other = Caller(again.http, own.token), Caller(again.http, other.token)
    assert own.get("/v1/reservations")["items"] == []
    own.refused(
        Code.OBJECT_UNKNOWN, "POST", "/v1/slices", {"tenant": "acme", "profile": "p", "reservation": held["id"]}
    )
    if asks_first:
        assert other.post("/v1/slices:explain", want, status=200)["fits"]
    assert other.post("/v1/slices", want)["host"] == "h1"
    assert again.operator.get("/v1/quotas/acme")["used_slices"] == 0


def test_a_request_whose_time_is_over_gives_back_no_more_than_it_has(
    cloud: Cloud, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = cloud.host("h1")
    own = cloud.tenant("acme", **PLENTY)
    other = cloud.tenant("blue", **PLENTY)
    cloud.profile("third", 333)
    for _ in range(3):
        own.post("/v1/reservations", {"tenant": "acme", "profile": "third", "places": 1, "expires_in_s": 60})
    clock.advance(60)
    assert host.report()
    monkeypatch.setattr(expired, "GIVE_BACK_S", 0)
    want = {"tenant": "blue", "profile": "third"}
    for left in (2, 1):
        other.post("/v1/slices", want)
        assert cloud.operator.get("/v1/quotas/acme")["used_slices"] == left
    monkeypatch.undo()
    cloud.profile("more", 334)
    other.post("/v1/slices", want | {"profile": "more"})
    assert cloud.operator.get("/v1/quotas/acme")["used_slices"] == 0


def test_whoever_may_not_claim_or_has_room_sets_nothing_in_motion(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, own = cloud.host("h1"), cloud.tenant("acme", **PLENTY)
    cloud.profile("half", 500)
    cloud.profile("whole", 1000)
    looked: list[object] = []
    monkeypatch.setattr(reservations, "expire", lambda session: bool(looked.append(session)))
    want = {"tenant": "acme", "profile": "half"}
    host.refused(Code.PERMISSION_DENIED, "POST", "/v1/slices:explain", want)
    own.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/slices:explain", want | {"profile": "none"})
    assert own.post("/v1/slices:explain", want, status=200)["fits"]
    assert not looked
    own.post("/v1/slices", want)
    assert not own.post("/v1/slices:explain", want | {"profile": "whole"}, status=200)["fits"]
    assert len(looked) == 1


def test_who_is_refused_is_told_that_though_what_expired_is_locked(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.host("h1")
    own = cloud.tenant("acme", **PLENTY)
    cloud.profile("whole", 1000)
    want = {"tenant": "acme", "profile": "whole"}
    own.post("/v1/slices", want)

    def busy(_session: object) -> bool:
        raise Refusal(Code.DATABASE_BUSY, "others held what this request needs; try again in a moment")

    monkeypatch.setattr(reservations, "expire", busy)
    own.refused(Code.CAPACITY_NONE, "POST", "/v1/slices", want)
    assert not own.post("/v1/slices:explain", want, status=200)["fits"]


@pytest.mark.parametrize("path", ["/v1/tenants/acme", "/v1/profiles/p", "/v1/hosts/h1"])
def test_what_expired_keeps_nothing_from_being_deleted(cloud: Cloud, clock: Clock, path: str) -> None:
    cloud.host("h1")
    own = cloud.tenant("acme", **PLENTY)
    cloud.profile("p", 100)
    wanted = {"tenant": "acme", "profile": "p", "places": 2, "expires_in_s": 60}
    held = own.post("/v1/reservations", wanted)["id"]
    etag = {"If-Match": cloud.operator("GET", path).headers["etag"]}
    cloud.operator.refused(Code.OBJECT_IN_USE, "DELETE", path, headers=etag)
    clock.advance(60)
    cloud.operator.refused(Code.OBJECT_UNKNOWN, "DELETE", f"/v1/reservations/{held}")
    cloud.operator.ok("DELETE", path, 204, headers=etag)


@pytest.mark.parametrize("path", ["/v1/tenants/acme", "/v1/tenants/shop", "/v1/profiles/half", "/v1/hosts/h1"])
def test_what_slices_and_projects_keep_from_being_deleted_sets_nothing_in_motion(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    cloud.host("h1")
    cloud.tenant("acme", **PLENTY)
    own = cloud.tenant("shop", account="acme", **PLENTY)
    cloud.profile("half", 500)
    own.post("/v1/slices", {"tenant": "shop", "profile": "half"})
    looked: list[object] = []
    monkeypatch.setattr(reservations, "expire", lambda session: bool(looked.append(session)))
    etag = {"If-Match": cloud.operator("GET", path).headers["etag"]}
    cloud.operator.refused(Code.OBJECT_IN_USE, "DELETE", path, headers=etag)
    assert not looked


def test_bands_and_policies_are_sold_refused_and_passed_on(cloud: Cloud) -> None:
    host = cloud.host("h1")
    own = cloud.tenant("acme", **PLENTY)
    kind = {"mem_bytes": 1 << 30, "share_permille": 250}
    quick = cloud.operator.post("/v1/profiles", kind | {"name": "quick", "band": "latency"})
    assert (quick["band"], quick["reserve_period_us"], quick["policy"]) == ("latency", 20_000, None)
    cloud.operator.post("/v1/profiles", kind | {"name": "equal", "policy": "equal_share"})
    for wrong, field in (
        ({"band": "real-time"}, "$.band"),
        ({"reserve_period_us": 5000}, "$.reserve_period_us"),
        ({"band": "latency", "reserve_period_us": 999}, "$.reserve_period_us"),
        ({"policy": "fixed_share"}, "$.mode"),
        ({"policy": "equal_share", "band": "latency"}, "$.band"),
    ):
        said = cloud.operator.refused(Code.FIELD_INVALID, "POST", "/v1/profiles", kind | {"name": "x"} | wrong)
        assert [reason.field for reason in said.reasons] == [field]

    want = {"tenant": "acme", "profile": "quick"}
    told = own.post("/v1/slices:explain", want, status=200)
    assert [(each["code"], each["count"]) for each in told["reasons"]] == [("reserve.full", 1)]
    told = own.post("/v1/slices:explain", want | {"profile": "equal"}, status=200)
    assert [(each["code"], each["count"]) for each in told["reasons"]] == [("policy.other", 1)]
    own.refused(Code.CAPACITY_NONE, "POST", "/v1/slices", want)

    host.gpu_members = {"reserve_limit_permille": 750}
    host.report()
    cloud.operator.patch("/v1/quotas/acme", {"band": "fair"})
    said = own.refused(Code.QUOTA_FORBIDDEN, "POST", "/v1/slices", want)
    assert [(reason.code, reason.field) for reason in said.reasons] == [("quota.band", "$.profile")]
    cloud.operator.patch("/v1/quotas/acme", {"band": None})
    claimed = own.post("/v1/slices", want)
    assert (claimed["band"], claimed["enforcement"]["policy"]) == ("latency", "best_effort")
    [group] = host.get("/v1/hosts/h1/desired")["groups"]
    assert (group["band"], group["reserve_us"], group["reserve_period_us"]) == ("latency", 5000, 20_000)
    [gpu] = cloud.operator.get("/v1/gpus")["items"]
    assert (gpu["policy"], gpu["reserve_limit_permille"]) == ("best_effort", 750)
    assert 250 < gpu["used_reserve_permille"] <= 300
