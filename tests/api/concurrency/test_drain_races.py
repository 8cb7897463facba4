# SPDX-License-Identifier: Apache-2.0
"""A drain that races with every other change of its host, by several API processes."""

from collections.abc import Callable
from typing import Any

from tests.api.concurrency.deployment import Reply
from tests.api.concurrency.races import Fleet, Host, at_once, outcomes

ROUNDS = 3
WIDE = 8


def acting(fleet: Fleet, host: Host, verb: str, body: Any = None) -> Callable[[], Reply]:
    """Returns the request of an operator who has seen the host's present state."""
    path = f"/v1/hosts/{host.name}"
    generation = fleet.operator.ask("GET", path).body["generation"]
    return fleet.ask("POST", f"{path}:{verb}", body, if_match=generation)


def operation(fleet: Fleet, reply: Reply) -> Any:
    return fleet.operator.ask("GET", f"/v1/operations/{reply.body['id']}?wait_s=30").body


def test_no_claim_comes_to_a_host_that_was_found_empty(fleet: Fleet) -> None:
    tenants, profile = [fleet.tenant() for _ in range(WIDE)], fleet.profile(share=100)
    for _ in range(ROUNDS * 2):
        host = fleet.host(64, 64)
        body = {"profile": profile, "host": host.name}
        claims = [fleet.ask("POST", "/v1/slices", body | {"tenant": tenant}) for tenant in tenants]
        *claimed, drained = at_once([*claims, acting(fleet, host, "drain", {})])
        assert drained.status == 202, drained.body
        assert set(outcomes(claimed)) <= {"done", "capacity.none"}
        made = {reply.body["id"] for reply in claimed if reply.status == 201}
        begun = drained.body
        # The drain waits for all claims: none was made after it.
        assert {each["slice"] for each in begun["progress"]["waiting_for"]} == made
        assert begun["done"] == (not made)
        for one in made:
            fleet.ask("DELETE", f"/v1/slices/{one}")()
        host.fulfil()
        assert operation(fleet, drained)["state"] == "succeeded"
    assert fleet.audit.violations() == []


def test_of_several_drains_one_is_begun(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile(share=1)
    for _ in range(ROUNDS):
        host = fleet.host()
        fleet.claim(tenant, profile, host=host.name)
        replies = at_once([acting(fleet, host, "drain", {}) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": 1, "generation.stale": WIDE - 1}
        assert acting(fleet, host, "drain", {})().code == "host.draining"
    assert fleet.audit.violations() == []


def test_a_drain_is_cancelled_or_done_and_never_both(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile(share=1)
    for _ in range(ROUNDS * 2):
        host = fleet.host()
        one = fleet.claim(tenant, profile, host=host.name)["id"]
        drained = acting(fleet, host, "drain", {"then": "maintenance"})()
        fleet.ask("DELETE", f"/v1/slices/{one}")()
        report = host.report(host.desired(), absent=(one,))
        path = f"/v1/operations/{drained.body['id']}"
        calls = [
            host.sending(report),
            *(fleet.ask("POST", f"{path}:cancel", {"undo": True}) for _ in range(3)),
            *(fleet.ask("GET", path) for _ in range(3)),
        ]
        replies = at_once(calls)
        cancelled = outcomes(replies[1:4])
        ended = operation(fleet, drained)
        state = fleet.operator.ask("GET", f"/v1/hosts/{host.name}").body["state"]
        if ended["state"] == "cancelled":
            assert cancelled == {"done": 1, "operation.done": 2}
            assert state == "ready"
        else:
            assert (ended["state"], cancelled) == ("succeeded", {"operation.done": 3})
            assert state == "maintenance"
        # Events have no order until somebody reads them.
        told = sorted(kind for _, kind, subject, *_ in fleet.audit.events() if subject == ended["id"])
        assert told == sorted(["operation.started", f"operation.{ended['state']}"])
    assert fleet.audit.violations() == []


def test_a_fence_ends_a_drain(fleet: Fleet) -> None:
    tenant, profile = fleet.tenant(), fleet.profile(share=1)
    for _ in range(ROUNDS):
        host = fleet.host()
        fleet.claim(tenant, profile, host=host.name)
        drained, fenced = at_once([acting(fleet, host, "drain", {}), host.fencing()])
        assert (drained.code, fenced.code) in (("", "generation.stale"), ("generation.stale", ""))
        if drained.status == 202:
            assert host.fencing()().status == 200
            assert operation(fleet, drained)["error"]["code"] == "host.fenced"
    assert fleet.audit.violations() == []


def test_a_drain_goes_on_when_its_process_is_killed(fleet: Fleet) -> None:
    """The replica that answered is killed; another replica, or the same one after a restart, finishes the drain."""
    tenant, profile = fleet.tenant(), fleet.profile(share=1)
    host = fleet.host()
    one = fleet.claim(tenant, profile, host=host.name)["id"]
    drained = acting(fleet, host, "drain", {"then": "maintenance"})()
    fleet.ask("DELETE", f"/v1/slices/{one}")()
    for replica in fleet.deployment.replicas:
        replica.kill()
    for replica in fleet.deployment.replicas:
        replica.start()
    host.fulfil()
    assert operation(fleet, drained)["state"] == "succeeded"
    assert fleet.operator.ask("GET", f"/v1/hosts/{host.name}").body["state"] == "maintenance"
    assert fleet.audit.violations() == []
