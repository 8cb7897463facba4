# SPDX-License-Identifier: Apache-2.0
"""A claim chose its place before an operator closed the host: the claim waits and is then decided again."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import cordoning, fencing, hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.lookup import tenant_named
from vgpumgr_api.tenancy import quotas

from tests.api.concurrency.audit import Audit
from tests.api.concurrency.uncommitted import behind
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostFence

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])

HOST = "one"
FENCE = HostFence(confirm=HOST, force=True)


def fence(session: Session, world: World, generation: int) -> Any:
    return fencing.fence_host(session, world.operator, HOST, FENCE, if_match=generation)


def new_epoch(session: Session, world: World, _generation: int) -> Any:
    return installation.new_epoch(session, world.operator)


def reenroll(session: Session, world: World, _generation: int) -> Any:
    return hosts.reenroll(session, world.operator, HOST)


def cordon(session: Session, world: World, generation: int) -> Any:
    return cordoning.cordon_host(session, world.operator, HOST, if_match=generation)


@pytest.mark.parametrize("reserved", [False, True], ids=["plain", "reserved"])
@pytest.mark.parametrize(
    ("closing", "reason"),
    [
        (fence, "host.fenced"),
        (new_epoch, "host.unconfirmed"),
        (reenroll, "host.offline"),
        (cordon, "host.cordoned"),
    ],
)
def test_whoever_closed_the_host_meanwhile_the_claim_is_refused(
    world: World,
    database: Database,
    url: str,
    closing: Callable[[Session, World, int], Any],
    reason: str,
    reserved: bool,
) -> None:
    world.host(HOST)
    world.tenant("acme")
    profile = world.profile(share=250)
    more = {"reservation": world.reserve("acme", profile, places=2).id} if reserved else {}
    generation = world.run(hosts.get_host, HOST).generation

    done, claimed, waited = behind(
        database,
        url,
        lambda session: closing(session, world, generation),
        lambda: world.claim("acme", profile, **more),
    )

    assert not isinstance(done, Refusal)
    assert waited
    assert isinstance(claimed, Refusal)
    assert claimed.code is Code.CAPACITY_NONE
    assert [one.code for one in claimed.reasons] == [reason]
    audit = Audit(url)
    assert audit.slices() == {}
    assert audit.violations() == []


def test_a_fence_waits_for_those_who_may_be_drawing_from_what_is_held_there(
    world: World, database: Database, url: str
) -> None:
    """The fence waits, so their claims are lost with the host, and neither transaction has to start again."""
    world.host(HOST)
    world.tenant("acme")
    world.tenant("web", account="acme")
    world.reserve("web", world.profile(share=250), places=2)
    generation = world.run(hosts.get_host, HOST).generation

    _, fenced, waited = behind(
        database,
        url,
        lambda session: quotas.lock_owners(session, quotas.owners_of(session, tenant_named(session, "web"))),
        lambda: world.run(fencing.fence_host, HOST, FENCE, if_match=generation),
    )

    assert waited
    assert fenced.fenced_at is not None
    assert Audit(url).violations() == []


def test_a_place_that_was_reserved_while_its_host_was_fenced_is_drawn_by_nobody(
    world: World, database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence did not see the reservation, so it did not lock the quota. A claim that draws from it locks no GPU."""
    world.host(HOST)
    world.tenant("acme")
    profile = world.profile(share=250)
    held: list[Any] = []
    close = fencing._close_gpus

    def reserve_and_close(*given: Any) -> None:
        held.append(world.reserve("acme", profile, places=1).id)
        close(*given)

    monkeypatch.setattr(fencing, "_close_gpus", reserve_and_close)
    generation = world.run(hosts.get_host, HOST).generation

    _, claimed, waited = behind(
        database,
        url,
        lambda session: fence(session, world, generation),
        lambda: world.claim("acme", profile, reservation=held[0]),
    )

    assert waited
    assert isinstance(claimed, Refusal)
    assert [one.code for one in claimed.reasons] == ["host.fenced"]
    audit = Audit(url)
    assert audit.slices() == {}
    assert audit.violations() == []
