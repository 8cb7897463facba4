# SPDX-License-Identifier: Apache-2.0
"""A claim finds no room, but the room is free by the time the claim collects the reasons: it starts again and
succeeds.
"""

from typing import Any

import pytest
from sqlalchemy.orm import Session
from vgpumgr_api.claims import claims, reservations
from vgpumgr_api.db.database import Database
from vgpumgr_api.tenancy import quotas

from tests.api.concurrency.audit import Audit
from tests.api.concurrency.uncommitted import behind
from tests.api.world import World
from vgpumgr.wire.resources import SliceCreate

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])


def test_a_gpu_that_was_freed_while_another_was_waited_for_is_taken(world: World, database: Database, url: str) -> None:
    for name in ("one", "two"):
        world.host(name)
        world.tenant(name)
    world.tenant("acme")
    whole = world.profile(share=1000)
    held = world.reserve("two", whole, host="two")

    def moves(session: Session) -> None:
        request = SliceCreate(tenant="one", profile=whole.name, host="one")
        claims.create_slice(session, world.operator, request)
        reservations.delete_reservation(session, world.operator, held.id, if_match=None)

    _, claimed, waited = behind(database, url, moves, lambda: world.claim("acme", whole))
    assert waited
    assert claimed.host == "two"
    assert Audit(url).violations() == []


def test_a_quota_that_was_given_back_before_it_was_said_to_be_exceeded_is_charged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.host("one")
    world.tenant("acme", slices=0)
    profile = world.profile(share=200)
    charge, charged = quotas._charge, []

    def then_raised(*given: Any) -> Any:
        charged.append(charge(*given))
        if len(charged) == 1:
            world.quota("acme", slices=1)
        return charged[-1]

    monkeypatch.setattr(quotas, "_charge", then_raised)
    assert world.claim("acme", profile).host == "one"
    assert len(charged) == 2
