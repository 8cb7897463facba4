# SPDX-License-Identifier: Apache-2.0
"""Requests that collide on purpose at the same moment have exactly one outcome: never a 500, never both."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.concurrency.deployment import Reply
from tests.api.concurrency.races import Fleet, Host, at_once, outcomes, vm

ROUNDS = 4
WIDE = 8


@pytest.mark.parametrize("kind", ["tenants", "profiles", "hosts"])
def test_one_name_is_given_once(fleet: Fleet, kind: str) -> None:
    more = {"share_permille": 1, "mem_bytes": 1} if kind == "profiles" else {}
    for _ in range(ROUNDS):
        body = {"name": fleet.name("same"), **more}
        replies = at_once([fleet.ask("POST", f"/v1/{kind}", body) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": 1, "object.exists": WIDE - 1}


def test_one_idempotency_key_makes_one_claim(fleet: Fleet) -> None:
    fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS):
        key, body = vm(), {"tenant": tenant, "profile": profile, "vm_uuid": vm()}
        replies = at_once([fleet.ask("POST", "/v1/slices", body, key=key) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": WIDE}
        assert len({reply.body["id"] for reply in replies}) == 1
    assert fleet.quota(tenant)["used_slices"] == ROUNDS


def test_one_idempotency_key_serves_one_of_two_requests(fleet: Fleet) -> None:
    fleet.host()
    tenant, profile, key = fleet.tenant(), fleet.profile(), vm()
    bodies = [{"tenant": tenant, "profile": profile, "vm_uuid": vm()} for _ in range(WIDE)]
    replies = at_once([fleet.ask("POST", "/v1/slices", body, key=key) for body in bodies])
    assert outcomes(replies) == {"done": 1, "idempotency.mismatch": WIDE - 1}


def test_the_last_places_of_gpus_are_all_given_and_none_twice(fleet: Fleet) -> None:
    # Claims of one tenant would wait for each other at its quota.
    tenants, profile = [fleet.tenant() for _ in range(16)], fleet.profile(share=250)
    for _ in range(ROUNDS):
        host = fleet.host(64, 64)
        body = {"profile": profile, "host": host.name}
        replies = at_once([fleet.ask("POST", "/v1/slices", body | {"tenant": tenant}) for tenant in tenants])
        assert outcomes(replies) == {"done": 8, "capacity.none": 8}


def test_the_last_memory_of_a_gpu_is_given_once(fleet: Fleet) -> None:
    tenants, profile = [fleet.tenant() for _ in range(12)], fleet.profile(share=10, gib=3)
    host = fleet.host(16)
    body = {"profile": profile, "host": host.name}
    replies = at_once([fleet.ask("POST", "/v1/slices", body | {"tenant": tenant}) for tenant in tenants])
    # A slice of 3 GiB uses the type with 4 GiB.
    assert outcomes(replies) == {"done": 4, "capacity.none": 8}


@pytest.mark.parametrize("limits", [{"share_permille": 500}, {"mem_bytes": 5 << 30}, {"slices": 5}])
@pytest.mark.parametrize("whose", ["account", "project"])
def test_the_last_of_a_quota_is_given_once(fleet: Fleet, whose: str, limits: dict[str, int]) -> None:
    fleet.host(64, 64)
    profile = fleet.profile(share=100)
    account = fleet.tenant(limits if whose == "account" else {})
    projects = [fleet.tenant(limits if whose == "project" else {}, account=account) for _ in range(2)]
    # An account and its projects share the account's quota; a project's quota is its own.
    owners = [account, *projects] if whose == "account" else projects[:1]
    bodies = [{"tenant": owners[number % len(owners)], "profile": profile} for number in range(12)]
    replies = at_once([fleet.ask("POST", "/v1/slices", body) for body in bodies])
    assert outcomes(replies) == {"done": 5, "quota.exceeded": 7}
    assert fleet.audit.violations() == []


def test_a_quota_cut_lets_no_claim_in_after_it(fleet: Fleet) -> None:
    """Claims before the cut stay and are scaled; claims after it are refused. Their order decides."""
    rng = random.Random(7)
    for _ in range(ROUNDS):
        host = fleet.host(64, 64)
        tenant, profile = fleet.tenant(), fleet.profile(share=100)
        body = {"tenant": tenant, "profile": profile, "host": host.name}
        limit, fields = rng.choice([(150, "share_permille"), (250, "share_permille")])
        cut = fleet.ask("PATCH", f"/v1/quotas/{tenant}", {fields: limit}, if_match=2)
        calls: list[Callable[[], Reply]] = [fleet.ask("POST", "/v1/slices", body) for _ in range(10)]
        calls.insert(rng.randrange(len(calls)), cut)
        replies = at_once(calls)
        claims = outcomes(replies) - Counter({"done": 1})
        assert set(claims) <= {"done", "quota.exceeded"}
        answered = next(reply for reply in replies if "used_share_permille" in (reply.body or {}))
        used = fleet.quota(tenant)["used_share_permille"]
        assert used == 100 * claims["done"]
        # After the cut, only claims that still fitted the new limit were granted.
        before_cut = answered.body["used_share_permille"]
        assert used <= max(before_cut, limit), f"{used} permille claimed, {before_cut} at the cut to {limit}"
        assert fleet.ask("POST", "/v1/slices", body)().code == ("quota.exceeded" if used + 100 > limit else "")
        _is_scaled(fleet, host, tenant, limit)


def test_a_cut_reaches_the_host_with_a_newer_generation(fleet: Fleet) -> None:
    """Reads documents one by one while claims, cuts and raises race: one generation is always one document."""
    host = fleet.host(64, 64)
    account = fleet.tenant()
    tenant, profile = fleet.tenant(account=account), fleet.profile(share=100)
    body = {"tenant": tenant, "profile": profile, "host": host.name}
    seen: dict[int, Any] = {}

    def look() -> Reply:
        for _ in range(6):
            document = host.desired()
            assert seen.setdefault(document["generation"], document) == document
        return fleet.operator.ask("GET", "/")

    for generation, limit in enumerate((150, 10_000, 330, 50, 10_000), start=2):
        calls = [
            fleet.ask("POST", "/v1/slices", body),
            fleet.ask("POST", "/v1/slices", body),
            fleet.ask("PATCH", f"/v1/quotas/{tenant}", {"share_permille": limit}, if_match=generation),
            fleet.ask("PATCH", f"/v1/quotas/{account}", {"share_permille": limit * 2}, if_match=generation),
            look,
        ]
        at_once(calls)
        document = host.desired()
        assert seen.setdefault(document["generation"], document) == document
        _is_scaled(fleet, host, tenant, limit, account_limit=limit * 2)


def test_of_two_changes_of_one_generation_one_is_made(fleet: Fleet) -> None:
    host = fleet.host()
    tenant = fleet.tenant()
    quotas = [fleet.ask("PATCH", f"/v1/quotas/{tenant}", {"slices": 1 + number}, if_match=2) for number in range(WIDE)]
    assert outcomes(at_once(quotas)) == {"done": 1, "generation.stale": WIDE - 1}
    generation = fleet.operator.ask("GET", f"/v1/hosts/{host.name}").body["generation"]
    hosts = [
        fleet.ask("PATCH", f"/v1/hosts/{host.name}", {"state": "cordoned"}, if_match=generation) for _ in range(WIDE)
    ]
    assert outcomes(at_once(hosts)) == {"done": 1, "generation.stale": WIDE - 1}


def _is_scaled(fleet: Fleet, host: Host, tenant: str, limit: int, *, account_limit: int | None = None) -> None:
    """The host is told share * limit / used, computed here from the rows; `tenant` is alone on the host."""
    rows = [row for row in fleet.audit.slices().values() if row.tenant == tenant]
    used = sum(row.share_permille for row in rows)
    limit = min(limit, limit if account_limit is None else account_limit)
    expected = {
        str(row.id): max(1, row.share_permille * limit // used) if used > limit else row.share_permille for row in rows
    }
    document = host.desired()
    assert {one["id"]: one["weight"] for one in document["slices"]} == expected
    assert sum(group["weight"] for group in document["groups"]) == sum(expected.values())


def test_a_slice_is_bound_to_one_of_several_vms(fleet: Fleet) -> None:
    host = fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS):
        slice_id = fleet.claim(tenant, profile, host=host.name)["id"]
        vms = [vm() for _ in range(WIDE // 2)] * 2
        replies = at_once([host.binding(slice_id, each) for each in vms])
        won = {each for each, reply in zip(vms, replies, strict=True) if reply.status == 200}
        assert outcomes(replies) == {"done": 2, "slice.bound": WIDE - 2}
        assert won == {str(fleet.stored(slice_id).vm_uuid)}
        assert won == {one["vm_uuid"] for one in host.desired()["slices"] if one["id"] == slice_id}
        fleet.ask("DELETE", f"/v1/slices/{slice_id}")()
        host.fulfil()


def test_binding_and_deleting_a_slice_leaves_a_tombstone_either_way(fleet: Fleet) -> None:
    host = fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS * 2):
        slice_id = fleet.claim(tenant, profile, host=host.name)["id"]
        bound, *deleted = at_once(
            [host.binding(slice_id, vm()), *(fleet.ask("DELETE", f"/v1/slices/{slice_id}") for _ in range(3))]
        )
        assert bound.code in ("", "slice.releasing")
        assert [reply.status for reply in deleted] == [202] * 3
        row = fleet.stored(slice_id)
        assert row.state == "releasing"
        assert (row.vm_uuid is not None) == (bound.status == 200)
        # One change by the deletion and one by a binding: nothing was done twice.
        assert {reply.body["generation"] for reply in deleted} == {3 if bound.status == 200 else 2}
        host.fulfil()
        assert fleet.stored(slice_id) is None


def test_a_report_of_before_the_deletion_frees_nothing(fleet: Fleet) -> None:
    """The host reports the device absent before it made it, while the claim is deleted. Only its next report counts."""
    host = fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS * 2):
        slice_id = fleet.claim(tenant, profile, host=host.name)["id"]
        document = host.desired()
        deleted, reported, claimed = at_once(
            [
                fleet.ask("DELETE", f"/v1/slices/{slice_id}"),
                host.sending(host.report(document, absent=(slice_id,))),
                fleet.ask("POST", "/v1/slices", {"tenant": tenant, "profile": profile, "host": host.name}),
            ]
        )
        assert (deleted.status, reported.body["accepted"], claimed.status) == (202, True, 201)
        assert fleet.stored(slice_id).state == "releasing"
        fleet.ask("DELETE", f"/v1/slices/{claimed.body['id']}")()
        host.fulfil()
        assert fleet.stored(slice_id) is None
    assert fleet.quota(tenant)["used_slices"] == 0


def test_a_tombstone_confirmed_twice_gives_back_once(fleet: Fleet) -> None:
    host = fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    fleet.claim(tenant, profile, host=host.name)
    for _ in range(ROUNDS):
        slice_id = fleet.claim(tenant, profile, host=host.name)["id"]
        fleet.ask("DELETE", f"/v1/slices/{slice_id}")()
        document = host.desired()
        replies = at_once([host.sending(host.report(document, absent=(slice_id,))) for _ in range(WIDE)])
        assert any(reply.body["accepted"] for reply in replies)
        assert fleet.stored(slice_id) is None
        assert fleet.quota(tenant)["used_slices"] == 1


def test_of_two_agents_the_one_that_started_last_is_believed(fleet: Fleet) -> None:
    """Two agents of one host send everything at once, in any order: the newest report is kept, and no older one
    replaces it.
    """
    rng = random.Random(11)
    for _ in range(ROUNDS):
        host = fleet.host()
        said = [
            host.report(agent_epoch=epoch, seq=seq, agent_version=f"{epoch}.{seq}")
            for epoch in (2, 3)
            for seq in range(1, 7)
        ]
        sent = rng.sample(said, len(said))
        replies = at_once([host.sending(report) for report in sent])
        accepted = {
            report["agent_version"] for report, reply in zip(sent, replies, strict=True) if reply.body["accepted"]
        }
        assert "3.6" in accepted
        [stored] = fleet.audit.ask(
            "SELECT r.agent_version, r.agent_epoch, r.seq FROM host_reports r"
            f" JOIN hosts h ON h.id = r.host_id WHERE h.name = '{host.name}'"
        )
        assert stored == ("3.6", 3, 6)
        assert {host.sending(report)().body["accepted"] for report in said} == {False}


def test_the_older_agent_of_a_host_frees_nothing(fleet: Fleet) -> None:
    host = fleet.host()
    tenant, profile = fleet.tenant(), fleet.profile()
    slice_id = fleet.claim(tenant, profile, host=host.name)["id"]
    fleet.ask("DELETE", f"/v1/slices/{slice_id}")()
    document = host.desired()
    newer, older = host.report(agent_epoch=3, seq=1), host.report(document, absent=(slice_id,), agent_epoch=2, seq=99)
    assert host.sending(newer)().body["accepted"]
    assert {reply.body["accepted"] for reply in at_once([host.sending(older) for _ in range(4)])} == {False}
    assert fleet.stored(slice_id).state == "releasing"


def test_what_is_claimed_cannot_be_deleted_at_the_same_moment(fleet: Fleet) -> None:
    host = fleet.host()
    for _ in range(ROUNDS * 2):
        tenant, profile = fleet.tenant(), fleet.profile(share=1)
        body = {"tenant": tenant, "profile": profile, "host": host.name}
        claims = [fleet.ask("POST", "/v1/slices", body) for _ in range(3)]
        ends = [
            fleet.ask("DELETE", f"/v1/tenants/{tenant}"),
            fleet.ask("DELETE", f"/v1/profiles/{profile}", if_match=1),
        ]
        replies = at_once([*claims, *ends])
        claimed, ended = outcomes(replies[:3]), outcomes(replies[3:])
        assert set(claimed) <= {"done", "object.unknown"}
        assert set(ended) <= {"done", "object.in_use"}
        # Either the claim and the two objects that it needs exist, or an object is gone and there is no claim.
        assert (claimed["done"] > 0) == (ended == {"object.in_use": 2})


def test_one_enrolment_token_makes_one_agent(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        announced = fleet.ask("POST", "/v1/hosts", {"name": fleet.name("host")})().body
        body, token = {"agent_version": "1", "boot_id": vm()}, announced["enroll_token"]
        replies = at_once([fleet.ask("POST", "/v1/enroll", body, token=token) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": 1, "auth.invalid": WIDE - 1}
