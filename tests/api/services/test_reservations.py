# SPDX-License-Identifier: Apache-2.0
"""Capacity that is reserved for a tenant's claims until an instant, and never longer."""

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update
from vgpumgr_api.claims import profiles, reservations
from vgpumgr_api.db.models import Quota
from vgpumgr_api.db.statements import change
from vgpumgr_api.fleet import hosts
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import tenants

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import GIB, World, gpu
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import SliceCreate

A, B = "0000:00:10.0", "0000:00:11.0"


def used(world: World, tenant: str) -> tuple[int, int, int]:
    quota = world.quota(tenant)
    return quota.used_share_permille, quota.used_mem_bytes, quota.used_slices


def test_what_is_held_counts_and_claims_that_name_it_take_it(world: World) -> None:
    world.host("one", inventory=[gpu(A)])
    world.tenant("acme")
    world.tenant("web", account="acme", slices=2)
    profile = world.profile(share=500)
    held = world.reserve("web", profile, places=2)
    assert (held.places, held.places_left, held.tenant, held.profile) == (2, 2, "web", profile.name)
    assert used(world, "web") == used(world, "acme") == (1000, 2 * GIB, 2)
    for tenant, code in (("acme", Code.CAPACITY_NONE), ("web", Code.QUOTA_EXCEEDED)):
        with refused(code):
            world.claim(tenant, profile)
    with refused(Code.OBJECT_UNKNOWN):
        world.claim("acme", profile, reservation=held.id)
    with refused(Code.FIELD_INVALID) as caught:
        world.claim("web", world.profile(share=500), reservation=held.id)
    assert caught.refusal is not None
    assert caught.refusal.reasons[0].field == "$.reservation"

    first = world.claim("web", profile, reservation=held.id)
    assert world.run(reservations.get_reservation, held.id).places_left == 1
    wanted = SliceCreate(tenant="web", profile=profile.name, reservation=held.id)
    [second] = world.claim_all([wanted])
    assert second.id != first.id
    assert used(world, "web") == used(world, "acme") == (1000, 2 * GIB, 2)
    assert (world.gpus()[0].used_share_permille, world.gpus()[0].used_mem_bytes) == (1000, 2 * GIB)
    with refused(Code.RESERVATION_USED):
        world.claim("web", profile, reservation=held.id)


def test_after_its_end_nobody_gets_a_place_and_all_is_given_back(world: World, clock: Clock) -> None:
    agent = world.host("one")
    world.tenant("acme")
    profile = world.profile(share=400)
    held = world.reserve("acme", profile, places=2, expires_in_s=60)
    taken = world.claim("acme", profile, reservation=held.id)
    assert not world.database.run(reservations.expire)
    clock.advance(60)
    agent.report()
    with refused(Code.OBJECT_UNKNOWN):
        world.claim("acme", profile, reservation=held.id)
    with refused(Code.OBJECT_UNKNOWN):
        world.run(reservations.get_reservation, held.id)
    assert world.run(reservations.list_reservations, PageRequest()).items == []
    assert world.database.run(reservations.expire)
    assert not world.database.run(reservations.expire)
    assert used(world, "acme") == (400, GIB, 1)
    assert (world.gpus()[0].used_share_permille, world.gpus()[0].used_mem_bytes) == (400, GIB)
    said = [each for each in world.events().items if each.kind == "reservation.expired"]
    assert [(each.object, each.detail) for each in said] == [(str(held.id), {"places_left": 1})]
    assert world.slice(taken.id).share_permille == 400


@pytest.mark.parametrize("owner", ["acme", "web"])
@pytest.mark.parametrize(
    ("narrowed", "reason"), [({"mode": Mode.STRICT}, "quota.mode"), ({"profiles": []}, "quota.profiles")]
)
def test_what_a_quota_permits_no_more_is_not_drawn_though_it_is_held(
    world: World, owner: str, narrowed: dict[str, Any], reason: str
) -> None:
    world.host("one")
    world.tenant("acme")
    world.tenant("web", account="acme")
    profile = world.profile(share=400)
    held = world.reserve("web", profile, places=2)
    world.claim("web", profile, reservation=held.id)
    world.quota(owner, **narrowed)
    with refused(Code.QUOTA_FORBIDDEN) as caught:
        world.claim("web", profile, reservation=held.id)
    assert caught.refusal is not None
    assert [each.code for each in caught.refusal.reasons] == [reason]
    assert world.run(reservations.get_reservation, held.id).places_left == 1
    world.quota(owner, **dict.fromkeys(narrowed))
    world.claim("web", profile, reservation=held.id)


def test_one_that_cannot_be_ended_keeps_no_later_one_from_its_end(
    world: World, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world.host("one")
    profile = world.profile(share=200)
    world.tenant("broken")
    world.tenant("acme")
    first = world.reserve("broken", profile, expires_in_s=60)
    world.reserve("acme", profile, expires_in_s=60)
    world.reserve("acme", profile, expires_in_s=61)
    # Releasing it would make the counter negative: the cause is a bug, or a manual change.
    world.database.run(
        lambda session: change(session, update(Quota).where(Quota.share_used == 200).values(share_used=0))
    )
    clock.advance(120)
    assert world.database.run(reservations.expire)
    assert world.database.run(reservations.expire)
    assert not world.database.run(reservations.expire)
    assert used(world, "acme") == (0, 0, 0)
    assert used(world, "broken") == (0, GIB, 1)
    assert f"reservation {first.id} cannot be ended" in caplog.text


def test_a_reservation_that_is_deleted_gives_back_once(world: World) -> None:
    world.host("one")
    world.tenant("acme")
    profile = world.profile(share=400)
    held = world.reserve("acme", profile, places=2)
    with refused(Code.GENERATION_STALE):
        world.run(reservations.delete_reservation, held.id, if_match=9)
    other = world.tenant_actor(world.tenant("blue").name)
    with refused(Code.OBJECT_UNKNOWN):
        world.run(reservations.delete_reservation, held.id, if_match=None, actor=other)
    world.run(reservations.delete_reservation, held.id, if_match=1)
    assert used(world, "acme") == (0, 0, 0)
    assert world.gpus()[0].used_share_permille == 0
    with refused(Code.OBJECT_UNKNOWN):
        world.run(reservations.delete_reservation, held.id, if_match=None)


@pytest.mark.parametrize("how", ["cordoned", "offline"])
def test_a_place_on_a_host_that_takes_no_claims_is_exchanged(world: World, clock: Clock, how: str) -> None:
    world.host("one")
    world.tenant("acme")
    profile = world.profile(share=400)
    held = world.reserve("acme", profile, expires_in_s=600)
    if how == "cordoned":
        world.set_host("one", state="cordoned")
    else:
        clock.advance(91)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, reservation=held.id)
    assert world.run(reservations.get_reservation, held.id).places_left == 1
    world.host("two")
    assert world.claim("acme", profile, reservation=held.id).host == "two"
    assert {each.host: each.used_share_permille for each in world.gpus()} == {"one": 0, "two": 400}
    assert used(world, "acme") == (400, GIB, 1)


def test_all_places_or_none_and_nothing_they_need_is_deleted(world: World) -> None:
    world.host("one", inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    profile = world.profile(share=600)
    with refused(Code.CAPACITY_NONE) as caught:
        world.reserve("acme", profile, places=3)
    assert caught.reasons == {"share.full": 2}
    assert used(world, "acme") == (0, 0, 0)
    held = world.reserve("acme", profile, places=2)
    for service, arguments in (
        (tenants.delete_tenant, ("acme",)),
        (profiles.delete_profile, (profile.name,)),
        (hosts.delete_host, ("one",)),
    ):
        generation = world.run(hosts.get_host, "one").generation if service is hosts.delete_host else 1
        with refused(Code.OBJECT_IN_USE):
            world.run(service, *arguments, if_match=generation)
    with refused(Code.OBJECT_UNKNOWN):
        world.claim("acme", profile, reservation=uuid4())
    assert world.run(reservations.get_reservation, held.id).places_left == 2


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_of_a_gpu_that_shrank_no_more_is_free_than_it_has(world: World, clock: Clock, how: str) -> None:
    agent = world.host("one", inventory=[gpu(mem_bytes=4 * GIB, types=(1,))])
    world.tenant("acme")
    profile = world.profile(share=100)
    world.claim("acme", profile)
    held = world.reserve("acme", profile, places=3)
    agent.inventory = [gpu(mem_bytes=2 * GIB, types=(1,))]
    agent.report()
    if how == "deleted":
        world.claim("acme", profile, reservation=held.id)
        world.run(reservations.delete_reservation, held.id, if_match=None)
    else:
        clock.advance(60)
        agent.report()
        assert world.database.run(reservations.expire)
        world.claim("acme", profile)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile)
    assert (world.gpus()[0].mem_bytes, world.gpus()[0].used_mem_bytes) == (2 * GIB, 2 * GIB)


def test_a_gpu_that_shrank_and_grew_has_what_its_host_says(world: World) -> None:
    agent = world.host("one", inventory=[gpu(mem_bytes=4 * GIB, types=(1,))])
    world.tenant("acme")
    profile = world.profile(share=100)
    held = world.reserve("acme", profile, places=4)
    for mem_gib in (2, 4):
        agent.inventory = [gpu(mem_bytes=mem_gib * GIB, types=(1,))]
        agent.report()
    world.run(reservations.delete_reservation, held.id, if_match=None)
    assert (world.gpus()[0].mem_bytes, world.gpus()[0].used_mem_bytes) == (4 * GIB, 0)
