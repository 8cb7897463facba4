# SPDX-License-Identifier: Apache-2.0
"""A live host that is declared dead, and everything else that may happen to it at the same moment."""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.api.concurrency.races import Fleet, Host, at_once, outcomes, vm

ROUNDS = 3
WIDE = 8


def states(fleet: Fleet, host: Host) -> set[str]:
    return {row.state for row in fleet.audit.slices().values() if row.host == host.name}


def test_a_claim_comes_before_the_fence_and_is_lost_or_after_it_and_is_refused(fleet: Fleet) -> None:
    tenants, profile = [fleet.tenant() for _ in range(WIDE)], fleet.profile(share=100)
    for _ in range(ROUNDS):
        host = fleet.host(64, 64)
        body = {"profile": profile, "host": host.name}
        claims = [fleet.ask("POST", "/v1/slices", body | {"tenant": tenant}) for tenant in tenants]
        *claimed, fenced = at_once([*claims, host.fencing()])
        assert fenced.status == 200, fenced.body
        assert set(outcomes(claimed)) <= {"done", "capacity.none"}
        made = [reply.body["id"] for reply in claimed if reply.status == 201]
        assert {fleet.stored(one).state for one in made} <= {"lost"}
        assert states(fleet, host) <= {"lost"}
        assert {fleet.quota(tenant)["used_slices"] for tenant in tenants} == {0}
        again = host.again()
        again.fulfil()
        assert states(fleet, host) == set()


def test_a_report_comes_before_the_fence_or_is_refused_and_quota_returns_once(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS):
        host = fleet.host()
        kept, dead = (fleet.claim(tenant, profile, host=host.name)["id"] for _ in range(2))
        fleet.ask("DELETE", f"/v1/slices/{dead}")()
        document = host.desired()
        said = [host.sending(host.report(document, absent=(kept, dead))) for _ in range(WIDE)]
        *reported, fenced = at_once([*said, host.fencing()])
        assert fenced.status == 200, fenced.body
        assert set(outcomes(reported)) <= {"done", "host.fenced"}
        freed = any(reply.status == 200 and reply.body["accepted"] for reply in reported)
        assert fleet.stored(kept).state == "lost"
        assert (fleet.stored(dead) is None) == freed
        assert fleet.quota(tenant)["used_slices"] == 0
        assert host.sending(host.report(document, absent=(kept, dead)))().code == "host.fenced"
        assert fleet.stored(kept).state == "lost"


def test_a_binding_and_a_deletion_end_in_a_lost_slice(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS):
        host = fleet.host()
        one, other = (fleet.claim(tenant, profile, host=host.name)["id"] for _ in range(2))
        delete = fleet.ask("DELETE", f"/v1/slices/{other}")
        bound, deleted, fenced = at_once([host.binding(one, vm()), delete, host.fencing()])
        assert (deleted.status, fenced.status) == (202, 200)
        assert bound.code in ("", "host.fenced", "slice.releasing")
        assert (fleet.stored(one).vm_uuid is not None) == (bound.status == 200)
        assert states(fleet, host) == {"lost"}
        assert fleet.quota(tenant)["used_slices"] == 0


def test_of_several_fences_one_is_made(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile()
    for _ in range(ROUNDS):
        host = fleet.host()
        fleet.claim(tenant, profile, host=host.name)
        assert outcomes(at_once([host.fencing() for _ in range(WIDE)])) == {"done": 1, "generation.stale": WIDE - 1}
        assert host.fencing()().status == 200
        assert [row[1] for row in fleet.audit.events() if row[2] == host.name].count("host.fenced") == 1
    assert fleet.quota(tenant)["used_slices"] == 0


def test_a_host_is_fenced_or_deleted(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        host = fleet.host()
        generation = fleet.operator.ask("GET", f"/v1/hosts/{host.name}").body["generation"]
        delete = fleet.ask("DELETE", f"/v1/hosts/{host.name}", if_match=generation)
        deleted, fenced = at_once([delete, host.fencing()])
        assert (deleted.code, fenced.code) in (("", "object.unknown"), ("generation.stale", ""))


def test_a_token_that_is_traded_while_its_host_is_fenced_serves_nobody_behind_the_fence(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        name = fleet.name("host")
        announced = fleet.operator.ask("POST", "/v1/hosts", {"name": name}).body
        body = {"agent_version": "1", "boot_id": vm()}
        enrol = fleet.ask("POST", "/v1/enroll", body, token=announced["enroll_token"])
        fence = fleet.ask("POST", f"/v1/hosts/{name}:fence", {"confirm": name, "force": True}, if_match=1)
        enrolled, fenced = at_once([enrol, fence])
        # Enrolling gives the host a new generation, which the operator has not seen.
        assert (enrolled.code, fenced.code) in (("", "generation.stale"), ("host.fenced", ""))


def test_a_credential_that_is_revoked_while_its_host_is_fenced_is_told_so(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        deleted, replaced = fleet.host(), fleet.host()
        page = fleet.operator.ask("GET", "/v1/tokens?page_size=1000").body
        (token,) = [one["id"] for one in page["items"] if one["subject"] == deleted.name]
        delete = fleet.ask("DELETE", f"/v1/tokens/{token}")
        reenrol = fleet.ask("POST", f"/v1/hosts/{replaced.name}:reenroll")
        revoked, fenced, made, fenced_or_stale = at_once([delete, deleted.fencing(), reenrol, replaced.fencing()])
        assert revoked.code in ("", "object.unknown")
        assert (fenced.code, made.code) == ("", "")
        assert deleted.sending(deleted.report())().code == "host.fenced"
        told = replaced.sending(replaced.report())().code
        assert (fenced_or_stale.code, told) in (("", "host.fenced"), ("generation.stale", "auth.invalid"))


def test_a_host_that_waits_for_its_desired_state_is_told_at_once(fleet: Fleet) -> None:
    host = fleet.host()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(host.waiting())
        time.sleep(0.5)
        assert not waiting.done()
        assert host.fencing()().status == 200
        assert waiting.result(10).code == "host.fenced"
