# SPDX-License-Identifier: Apache-2.0
"""Batches, affinities, policies and reservations at the same moment; the fixture audits the result."""

import random
from typing import Any

from tests.api.concurrency.agents import enrolled, inventory
from tests.api.concurrency.races import GIB, Fleet, Host, at_once, outcomes

ROUNDS = 4
WIDE = 8


def zone(fleet: Fleet, hosts: int, gpus: int) -> dict[str, str]:
    """Makes hosts for this test alone; returns the selector for them."""
    selector = {"zone": fleet.name("zone")}
    for _ in range(hosts):
        path = f"/v1/hosts/{fleet.host(*[64] * gpus).name}"
        generation = fleet.operator.ask("GET", path).body["generation"]
        assert fleet.operator.ask("PATCH", path, {"labels": selector}, if_match=generation).status == 200
    return selector


def test_of_batches_that_come_at_once_each_is_whole_or_nothing(fleet: Fleet) -> None:
    """Batches take the same GPUs in any order and never deadlock."""
    rng = random.Random(5)
    for _ in range(ROUNDS):
        selector, profile = zone(fleet, 2, 2), fleet.profile(share=300)
        tenants = [fleet.tenant() for _ in range(WIDE)]
        calls = []
        for tenant in tenants:
            want: list[dict[str, Any]] = [
                {"tenant": tenant, "profile": profile, "selector": selector, "placement": placement}
                for placement in rng.choices(("pack", "spread"), k=3)
            ]
            calls.append(fleet.ask("POST", "/v1/slices:batch", {"slices": want}))
        replies = at_once(calls)
        assert set(outcomes(replies)) <= {"done", "capacity.none"}
        used = [fleet.quota(tenant)["used_slices"] for tenant in tenants]
        assert used == [3 if reply.status == 201 else 0 for reply in replies]
        assert outcomes(replies)["done"] == 4  # 4 GPUs with 3 places each; a batch takes 3


def test_slices_that_must_not_be_together_are_not_even_if_claimed_at_once(fleet: Fleet) -> None:
    for level, possible in (("host", 2), ("gpu", 4)):
        selector, profile, tenant = zone(fleet, 2, 2), fleet.profile(share=10), fleet.tenant()
        want = {"tenant": tenant, "profile": profile, "selector": selector}
        want["anti_affinity"] = {"key": "db", "level": level}
        replies = at_once([fleet.ask("POST", "/v1/slices", want) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": possible, "capacity.none": WIDE - possible}
        del want["anti_affinity"]
        want["affinity"] = {"key": "train", "level": level}
        replies = at_once([fleet.ask("POST", "/v1/slices", want) for _ in range(WIDE)])
        assert len({reply.body["host" if level == "host" else "gpu_id"] for reply in replies}) == 1


def test_each_place_of_a_reservation_is_taken_once(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        selector, profile, tenant = zone(fleet, 1, 2), fleet.profile(share=400), fleet.tenant()
        body = {"tenant": tenant, "profile": profile, "places": 4, "expires_in_s": 600, "selector": selector}
        held = fleet.operator.ask("POST", "/v1/reservations", body).body["id"]
        want = {"tenant": tenant, "profile": profile, "reservation": held}
        replies = at_once([fleet.ask("POST", "/v1/slices", want) for _ in range(WIDE)])
        assert outcomes(replies) == {"done": 4, "reservation.used": WIDE - 4}
        assert fleet.quota(tenant)["used_slices"] == 4


def test_a_reservation_that_ends_while_its_places_are_taken_gives_back_the_rest(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        selector, profile, tenant = zone(fleet, 1, 2), fleet.profile(share=200), fleet.tenant()
        body = {"tenant": tenant, "profile": profile, "places": 8, "expires_in_s": 600, "selector": selector}
        held = fleet.operator.ask("POST", "/v1/reservations", body).body["id"]
        want = {"tenant": tenant, "profile": profile, "reservation": held}
        claims = [fleet.ask("POST", "/v1/slices", want) for _ in range(4)]
        ends = [fleet.ask("DELETE", f"/v1/reservations/{held}") for _ in range(2)]
        others = [
            fleet.ask("POST", "/v1/slices", {"tenant": fleet.tenant(), "profile": profile, "selector": selector})
            for _ in range(2)
        ]
        replies = at_once([*claims, *ends, *others])
        claimed = outcomes(replies[:4])
        assert set(claimed) <= {"done", "object.unknown", "reservation.used"}
        assert outcomes(replies[4:6])["done"] >= 1
        assert set(outcomes(replies[6:])) <= {"done", "capacity.none"}
        assert fleet.quota(tenant)["used_slices"] == claimed["done"]


def shared(fleet: Fleet, policy: str, **members: Any) -> str:
    """Returns the name of a host with one GPU of this policy."""
    name = fleet.name("host")
    [described] = inventory([64])
    return Host(fleet, name, enrolled(fleet.operator, name), [described | {"policy": policy} | members]).name


def profile_of(fleet: Fleet, policy: str, share: int) -> str:
    body = {"name": fleet.name("profile"), "share_permille": share, "mem_bytes": GIB, "policy": policy}
    body["mode"] = "strict" if policy == "fixed_share" else "fair"
    assert fleet.operator.ask("POST", "/v1/profiles", body).status == 201
    return str(body["name"])


def test_no_more_claims_come_to_a_gpu_than_it_has_places(fleet: Fleet) -> None:
    """Free share does not limit these claims: each asks for far less than its part, so only the number of places
    does.
    """
    for places in range(1, ROUNDS + 1):
        host, profile = shared(fleet, "fixed_share", places=places), profile_of(fleet, "fixed_share", 10)
        tenants = [fleet.tenant() for _ in range(WIDE)]
        want = [{"tenant": tenant, "profile": profile, "host": host} for tenant in tenants]
        held = [each | {"places": 1, "expires_in_s": 600} for each in want[:2]]
        calls = [fleet.ask("POST", "/v1/slices", each) for each in want[2:]]
        calls += [fleet.ask("POST", "/v1/reservations", each) for each in held]
        replies = at_once(calls)
        assert outcomes(replies) == {"done": places, "capacity.none": WIDE - places}
        refused = [reply.body["reasons"] for reply in replies if reply.code]
        assert all({"policy.places"} == {each["code"] for each in reasons} & {"policy.places"} for reasons in refused)
        assert sum(fleet.quota(tenant)["used_slices"] for tenant in tenants) == places


def test_slices_that_come_to_an_equally_shared_gpu_at_once_are_all_sold_the_same(fleet: Fleet) -> None:
    for _ in range(2 * ROUNDS):
        host = shared(fleet, "equal_share")
        kinds = [profile_of(fleet, "equal_share", share) for share in (100, 90)]
        tenants = [fleet.tenant() for _ in range(WIDE)]
        want = [{"tenant": tenant, "profile": kinds[number % 2], "host": host} for number, tenant in enumerate(tenants)]
        replies = at_once([fleet.ask("POST", "/v1/slices", each) for each in want])
        assert outcomes(replies) == {"done": WIDE // 2, "capacity.none": WIDE // 2}
        assert len({reply.body["share_permille"] for reply in replies if not reply.code}) == 1
