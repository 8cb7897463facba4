# SPDX-License-Identifier: Apache-2.0
"""Stories of tenants, operators and hosts, from their point of view."""

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from tests.api.http.cloud import GIB, GPU, MERGE_PATCH, Cloud
from vgpumgr.wire.problem import Code

PLENTY = {"share_permille": 2000, "mem_bytes": 16 * GIB, "slices": 10}


def test_a_tenant_gets_quota_claims_is_refused_more_and_gives_back(cloud: Cloud) -> None:
    operator = cloud.operator
    host = cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red")

    # Without quota, a claim is refused.
    claim = {"tenant": "red", "profile": "half"}
    red.refused(Code.QUOTA_EXCEEDED, "POST", "/v1/slices", claim)
    operator.patch("/v1/quotas/red", {"share_permille": 500, "mem_bytes": GIB, "slices": 1})

    # With quota, the claim succeeds, and the answer names its place.
    response = red("POST", "/v1/slices", claim)
    slice_ = response.json()
    assert response.status_code == 201
    assert response.headers["location"] == f"/v1/slices/{slice_['id']}"
    assert response.headers["etag"].startswith(f'"{slice_["generation"]}-')
    assert (slice_["host"], slice_["gpu"], slice_["state"]) == ("h1", GPU, "claimed")
    assert slice_["mdev_type"] == "vgpumgr-1g"
    assert red.get("/v1/quotas/red")["used_share_permille"] == 500

    # The next claim exceeds the quota, and the refusal says by how much.
    refusal = red.refused(Code.QUOTA_EXCEEDED, "POST", "/v1/slices", claim)
    assert refusal.limits
    assert red.get("/v1/slices")["items"] == [red.get(f"/v1/slices/{slice_['id']}")]

    # The host learns of the claim. Its place becomes free only when the host reports the device absent.
    assert [each.id.hex for each in host.desired().slices] == [slice_["id"].replace("-", "")]
    host.report()
    assert red.get(f"/v1/slices/{slice_['id']}")["observed"]["present"] is True
    assert red.delete(f"/v1/slices/{slice_['id']}", status=202)["state"] == "releasing"
    assert red.get("/v1/quotas/red")["used_slices"] == 1
    assert [str(each.id) for each in host.desired().tombstones] == [slice_["id"]]
    host.report()
    red.refused(Code.OBJECT_UNKNOWN, "GET", f"/v1/slices/{slice_['id']}")
    assert red.get("/v1/quotas/red")["used_slices"] == 0
    assert operator.get("/v1/gpus")["items"][0]["used_share_permille"] == 0
    assert host.desired().tombstones == []


def test_a_lost_answer_is_asked_for_again_and_claims_once(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    claim = {"tenant": "red", "profile": "half", "vm_uuid": str(uuid4())}
    key = {"Idempotency-Key": "order-4711"}

    first = red("POST", "/v1/slices", claim, headers=key)
    again = red("POST", "/v1/slices", dict(reversed(claim.items())), headers=key)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["location"] == first.headers["location"]
    assert len(red.get("/v1/slices")["items"]) == 1

    red.refused(Code.IDEMPOTENCY_MISMATCH, "POST", "/v1/slices", claim | {"vm_uuid": str(uuid4())}, headers=key)
    red.refused(Code.FIELD_INVALID, "POST", "/v1/slices", claim, headers={"Idempotency-Key": "a b"})
    red.refused(Code.FIELD_INVALID, "POST", "/v1/slices", claim, headers={"Idempotency-Key": "k" * 256})
    assert len(red.get("/v1/slices")["items"]) == 1

    # A key belongs to its caller: the same key from another caller is another request.
    blue = cloud.tenant("blue", **PLENTY)
    other = blue("POST", "/v1/slices", {"tenant": "blue", "profile": "half"}, headers=key)
    assert other.status_code == 201
    assert other.json()["tenant"] == "blue"


def test_a_rehearsed_claim_answers_alike_and_claims_nothing(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    claim = {"tenant": "red", "profile": "half"}

    rehearsal = red("POST", "/v1/slices?validate_only=true", claim, headers={"Idempotency-Key": "k"})
    assert rehearsal.status_code == 200
    assert "location" not in rehearsal.headers
    assert (rehearsal.json()["host"], rehearsal.json()["tenant"]) == ("h1", "red")
    assert red.get("/v1/slices")["items"] == []
    assert red.get("/v1/quotas/red")["used_slices"] == 0

    red.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/slices?validate_only=true", claim | {"profile": "none"})
    # The key of the validate_only request is still unused.
    assert red("POST", "/v1/slices", claim, headers={"Idempotency-Key": "k"}).status_code == 201


def test_two_operators_change_one_quota_and_the_slower_one_is_told(cloud: Cloud) -> None:
    operator = cloud.operator
    cloud.tenant("red", **PLENTY)
    path = "/v1/quotas/red"
    seen = operator("GET", path).headers["etag"]

    operator.refused(Code.GENERATION_REQUIRED, "PATCH", path, {"slices": 1})
    changed = operator("PATCH", path, {"slices": 3}, headers={"If-Match": seen})
    assert changed.status_code == 200
    assert changed.headers["etag"] != seen
    operator.refused(Code.GENERATION_STALE, "PATCH", path, {"slices": 4}, headers={"If-Match": seen})
    assert operator.get(path)["slices"] == 3
    assert operator.get(path)["mem_bytes"] == PLENTY["mem_bytes"]


def test_a_merge_patch_may_come_as_json_and_removes_nothing(cloud: Cloud) -> None:
    cloud.tenant("red")
    operator, path = cloud.operator, "/v1/quotas/red"
    etag = operator("GET", path).headers["etag"]
    plain = {"If-Match": etag, "Content-Type": "application/json"}
    assert operator("PATCH", path, {"slices": 2}, headers=plain).status_code == 200
    etag = {"If-Match": operator("GET", path).headers["etag"]}
    operator.refused(Code.FIELD_INVALID, "PATCH", path, {"slices": None}, headers=etag)
    operator.refused(Code.FIELD_INVALID, "PATCH", path, {"slices": "2"}, headers=etag)
    operator.refused(Code.FIELD_INVALID, "PATCH", path, {"slice": 2}, headers=etag)
    operator.refused(Code.BODY_INVALID, "PATCH", path, headers=etag | MERGE_PATCH)
    assert operator.get(path)["slices"] == 2


def test_everything_that_is_in_use_stays(cloud: Cloud) -> None:
    operator = cloud.operator
    cloud.host("h1")
    cloud.profile("half", 500)
    acme = cloud.tenant("acme", **PLENTY)
    web = cloud.tenant("web", account="acme", **PLENTY)
    claimed = web.post("/v1/slices", {"tenant": "web", "profile": "half"})

    for path in ("/v1/tenants/acme", "/v1/tenants/web", "/v1/profiles/half", "/v1/hosts/h1"):
        etag = operator("GET", path).headers["etag"]
        operator.refused(Code.OBJECT_IN_USE, "DELETE", path, headers={"If-Match": etag})
        [reason] = operator("DELETE", path, headers={"If-Match": etag}).json()["reasons"]
        project = {"kind": "tenant", "name": "web"}
        assert reason["about"] == (project if path.endswith("acme") else {"kind": "slice", "id": claimed["id"]})
    operator.refused(Code.GENERATION_REQUIRED, "DELETE", "/v1/profiles/half")
    operator.refused(Code.GENERATION_REQUIRED, "DELETE", "/v1/hosts/h1")
    assert acme.get("/v1/slices")["items"] == web.get("/v1/slices")["items"] != []


def test_a_life_ends_with_nothing_left(cloud: Cloud) -> None:
    operator = cloud.operator
    host = cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    claimed = red.post("/v1/slices", {"tenant": "red", "profile": "half"})
    red.delete(f"/v1/slices/{claimed['id']}", status=202)
    host.report()
    for path in ("/v1/profiles/half", "/v1/hosts/h1", "/v1/tenants/red"):
        operator.delete(path)
        operator.refused(Code.OBJECT_UNKNOWN, "GET", path)
    red.refused(Code.AUTH_INVALID, "GET", "/v1/slices")
    host.refused(Code.AUTH_INVALID, "GET", f"/v1/hosts/{host.id}/desired")


def test_a_list_is_read_page_by_page(cloud: Cloud) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        cloud.operator.post("/v1/tenants", {"name": name})
    read, token = [], ""
    while True:
        page = cloud.operator.get(f"/v1/tenants?page_size=3&page_token={token}")
        assert len(page["items"]) <= 3
        read += [each["name"] for each in page["items"]]
        token = page["next_page_token"]
        if not token:
            break
    assert read == names
    assert len(cloud.operator.get("/v1/tenants?page_size=5000")["items"]) == 7
    token = cloud.operator.get("/v1/tenants?page_size=3")["next_page_token"]
    cloud.operator.refused(Code.FIELD_INVALID, "GET", f"/v1/profiles?page_token={token}")
    cloud.operator.refused(Code.FIELD_INVALID, "GET", "/v1/tenants?page_token=made-up")


def test_events_tell_in_order_what_was_done_and_by_whom(cloud: Cloud) -> None:
    cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    red.post("/v1/slices", {"tenant": "red", "profile": "half"})
    events = cloud.operator.get("/v1/events")["items"]
    assert [each["seq"] for each in events] == sorted(each["seq"] for each in events)
    assert (events[-1]["kind"], events[-1]["tenant"], events[-1]["actor"]) == ("slice.claimed", "red", "tenant:red")
    first = cloud.operator.get("/v1/events?page_size=1")
    rest = cloud.operator.get(f"/v1/events?after={first['next_page_token']}")
    assert first["items"] + rest["items"] == events
    assert {each["tenant"] for each in red.get("/v1/events")["items"]} == {"red"}


def test_a_slice_without_a_vm_is_bound_to_the_first_that_starts(cloud: Cloud) -> None:
    host = cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    claimed = red.post("/v1/slices", {"tenant": "red", "profile": "half"})
    path, vm = f"/v1/hosts/{host.id}/slices/{claimed['id']}:bind", str(uuid4())
    assert host.post(path, {"vm_uuid": vm}, status=200)["vm_uuid"] == vm
    assert host.post(path, {"vm_uuid": vm}, status=200)["vm_uuid"] == vm
    host.refused(Code.SLICE_BOUND, "POST", path, {"vm_uuid": str(uuid4())})
    assert [each["id"] for each in red.get(f"/v1/slices?vm_uuid={vm}")["items"]] == [claimed["id"]]
    assert red.get(f"/v1/slices?vm_uuid={uuid4()}")["items"] == []


def test_a_host_enrols_once_and_again_only_when_told(cloud: Cloud) -> None:
    announced = cloud.operator.post("/v1/hosts", {"name": "h1"})
    enrol = {"agent_version": "1", "boot_id": str(uuid4())}
    bearer = {"Authorization": f"Bearer {announced['enroll_token']}"}
    first = cloud.nobody.post("/v1/enroll", enrol, status=200, headers=bearer)
    cloud.nobody.refused(Code.AUTH_INVALID, "POST", "/v1/enroll", enrol, headers=bearer)
    cloud.nobody.refused(Code.AUTH_REQUIRED, "POST", "/v1/enroll", enrol)
    # An enrol token allows nothing but enrolment, and no other token allows enrolment.
    cloud.nobody.refused(Code.AUTH_INVALID, "GET", "/v1/hosts", headers=bearer)
    cloud.operator.refused(Code.AUTH_INVALID, "POST", "/v1/enroll", enrol)

    again = cloud.operator.post("/v1/hosts/h1:reenroll", status=200)
    path = f"/v1/hosts/{first['host_id']}/desired"
    cloud.nobody.refused(Code.AUTH_INVALID, "GET", path, headers={"Authorization": f"Bearer {first['token']}"})
    bearer = {"Authorization": f"Bearer {again['enroll_token']}"}
    assert cloud.nobody.post("/v1/enroll", enrol, status=200, headers=bearer)["host_id"] == first["host_id"]


def test_an_agent_whose_token_was_revoked_while_it_waited_learns_nothing(cloud: Cloud) -> None:
    host = cloud.host("h1")
    cloud.profile("half", 500)
    red = cloud.tenant("red", **PLENTY)
    claimed = red.post("/v1/slices", {"tenant": "red", "profile": "half"})
    seen = host.desired()
    path = f"/v1/hosts/{host.id}/desired?epoch={seen.epoch}&generation={seen.generation}&wait_s=60"
    with ThreadPoolExecutor() as elsewhere:
        waiting = elsewhere.submit(host, "GET", path)
        time.sleep(1)
        assert not waiting.done()
        cloud.operator.post("/v1/hosts/h1:reenroll", status=200)
        red.delete(f"/v1/slices/{claimed['id']}", status=202)
        answer = waiting.result(timeout=30)
    assert answer.json()["code"] == Code.AUTH_INVALID


def test_what_only_the_database_can_refuse_names_its_place_too(cloud: Cloud) -> None:
    cloud.tenant("red", **PLENTY)
    cloud.operator.post("/v1/tenants", {"name": "web", "account": "red"})
    refusals = {
        "query.page_token": ("GET", "/v1/tenants?page_token=x", None),
        "$.role": ("POST", "/v1/tokens", {"role": "host"}),
        "$.account": ("POST", "/v1/tenants", {"name": "new", "account": "web"}),
        "$.slices": ("PATCH", "/v1/quotas/red", {"slices": None}),
    }
    for field, (method, path, body) in refusals.items():
        said = cloud.operator.refused(Code.FIELD_INVALID, method, path, body, headers={"If-Match": '"1"'})
        assert [reason.field for reason in said.reasons] == [field]


def test_a_page_token_belongs_to_its_filters(cloud: Cloud) -> None:
    cloud.host("h1")
    acme = cloud.tenant("acme", share_permille=900, mem_bytes=9 * GIB, slices=9)
    cloud.profile("p1", 10)
    for _ in range(3):
        acme.post("/v1/slices", {"tenant": "acme", "profile": "p1"})
    first = acme.get("/v1/slices?state=claimed&tenant=acme&page_size=1")
    token = first["next_page_token"]
    rest = acme.get(f"/v1/slices?page_token={token}&tenant=acme&state=claimed&page_size=9")
    assert len(rest["items"]) == 2
    for other in ("", "&state=claimed", "&tenant=acme&state=releasing", "&tenant=acme&state=claimed&host=h1"):
        said = acme.refused(Code.FIELD_INVALID, "GET", f"/v1/slices?page_token={token}{other}")
        assert [reason.field for reason in said.reasons] == ["query.page_token"]
