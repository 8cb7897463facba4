# SPDX-License-Identifier: Apache-2.0
"""A lying or broken host does not affect other hosts."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert
from vgpumgr_api.claims import explain, profiles
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.events import allowance
from vgpumgr_api.fleet import hosts
from vgpumgr_api.observe import figures
from vgpumgr_api.usage.unbooked import UNATTRIBUTED

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import ADDRESS, GIB, Agent, World, gpu
from vgpumgr.wire.common import COUNTER_MAX, Band, Mode, Policy
from vgpumgr.wire.fleet import ReportedGpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Profile, ProfileCreate, SliceCreate
from vgpumgr.wire.usage import COUNT_MAX_NS

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def swapped(agent: Agent, lot: int) -> bool:
    """Reports four GPUs instead of the four before."""
    agent.inventory = [gpu(f"{lot % 2 + 1:04x}:{number:02x}:00.0") for number in range(4)]
    return agent.report()


def test_a_host_that_makes_ever_more_happen_is_held_up(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event is kept for ever, so the API refuses such a report without effect; other hosts are not limited."""
    monkeypatch.setattr(allowance, "EVENTS_AN_HOUR", 20)
    liar, other = world.host("liar", inventory=[]), world.host("other", inventory=[])
    lots = iter(range(100))
    with refused(Code.RATE_EXCEEDED) as caught:
        while True:
            swapped(liar, next(lots))
    assert next(lots) == 5  # four events, then eight each time; after that, the 20 of an hour are exceeded
    assert caught.refusal is not None
    assert caught.refusal.retry_after_s == 600
    assert swapped(other, 0)
    present = {one.address for one in world.gpus() if one.host == "liar" and one.present}
    assert present == {f"0002:{number:02x}:00.0" for number in range(4)}
    clock.advance(600)
    assert liar.report()
    again = world.enrolled("liar", world.run(hosts.reenroll, "liar").enroll_token)
    for lot in range(3):
        assert swapped(again, lot)


def told(address: str = ADDRESS, **members: Any) -> ReportedGpu:
    return gpu(address).model_copy(update={"reserve_limit_permille": 750, **members})


def profile(world: World, name: str, **members: Any) -> Profile:
    wanted = ProfileCreate(name=name, share_permille=250, mem_bytes=GIB, **members)
    made: Profile = world.run(profiles.create_profile, wanted)
    return made


LATENCY: dict[str, Any] = {"band": Band.LATENCY}
FIXED: dict[str, Any] = {"policy": Policy.FIXED_SHARE, "mode": Mode.STRICT}


@pytest.mark.parametrize(
    ("wanted", "honest", "lie"),
    [
        (LATENCY, {}, {"max_chunk_us": COUNTER_MAX}),
        (FIXED, {"policy": Policy.FIXED_SHARE, "places": 4}, {"policy": Policy.FIXED_SHARE, "places": COUNTER_MAX}),
        ({}, {}, {"timeslice_min_us": COUNTER_MAX}),
    ],
    ids=["chunk", "places", "timeslice"],
)
def test_no_number_that_a_host_says_of_a_gpu_keeps_others_from_claiming(
    world: World, wanted: dict[str, Any], honest: dict[str, Any], lie: dict[str, Any]
) -> None:
    world.tenant("acme")
    liar = world.host("liar", inventory=[told(**(honest | lie))])
    world.host("one", inventory=[told(**honest)])
    some = profile(world, "some", **wanted)
    claimed = [world.claim("acme", some, host="one"), world.claim("acme", some)]
    assert {one.host for one in claimed} <= ({"one", "liar"} if not wanted else {"one"})
    found = world.run(explain.explain, SliceCreate(tenant="acme", profile="some"))
    assert found.gpus == 2
    assert liar.report()
    assert liar.desired()
    assert len({one.id for one in world.gpus()}) == 2


def test_no_count_of_nobodys_breaks_the_figures_of_the_fleet(database: Database) -> None:
    """As many names as a host may report, each with the largest count."""
    enough = range(COUNTER_MAX // COUNT_MAX_NS + 1)
    row = {"hour": NOW, "host": "liar", "gpu": ADDRESS, "reason": UNATTRIBUTED, "run_ns": COUNT_MAX_NS}
    row |= dict.fromkeys(("due_ns", "assured_ns", "throttled_ns", "reserved_ns"), 0)
    rows = [row | {"tenant": f"x{number}"} for number in enough]
    database.run(lambda session: session.execute(insert(ledger.Unbooked), rows))
    shown = database.run(figures.figures, read_only=True)
    assert shown.unbooked_s[UNATTRIBUTED] > COUNTER_MAX / 1e9
