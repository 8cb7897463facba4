# SPDX-License-Identifier: Apache-2.0
"""Claims when more GPUs do not fit than a claim may look at: none of these GPUs is read."""

import time
from dataclasses import dataclass, field
from threading import Thread

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.statements import change
from vgpumgr_api.placement import candidates
from vgpumgr_api.placement.candidates import LOOKED_AT, WALKED
from vgpumgr_api.placement.obstacles import Wanted, parameters

from tests.api.services.test_claim_cost import looks_at_few, told
from tests.api.world import GIB, World, gpu

CROWD = WALKED + 4


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The GPUs of a host: how many, and how much of each is used; the used shares alternate."""

    name: str
    gpus: int
    shares: range | tuple[int, ...]
    used_gib: int
    of_gib: int = 64
    columns: dict[str, int] = field(default_factory=dict)


def fill(world: World, *pools: Pool) -> None:
    for pool in pools:
        hosts = [f"{pool.name}-{start}" for start in range(0, pool.gpus, 200)]
        for number, name in enumerate(hosts):
            there = range(number * 200, min(pool.gpus, number * 200 + 200))
            types = (1, 4, 8)
            world.host(
                name, inventory=[gpu(f"{each:04x}:00:00.0", mem_bytes=pool.of_gib * GIB, types=types) for each in there]
            )

        def use(session: Session, pool: Pool = pool, hosts: list[str] = hosts) -> None:
            rows = session.scalars(select(Gpu.id).join(Host, Host.id == Gpu.host_id).where(Host.name.in_(hosts))).all()
            for number, share in enumerate(pool.shares):
                some = update(Gpu).where(Gpu.id.in_(rows[number :: len(pool.shares)]))
                change(session, some.values(share_used=share, mem_used=pool.used_gib * GIB, **pool.columns))

        world.database.run(use)


def pool_of_claim(world: World, share: int, gib: int) -> str:
    """Makes a claim, which must look at few GPUs; returns the pool of its GPU."""
    tenant = world.tenant().name
    profile = world.profile(share=share, gib=gib)
    with told(world.database) as statements:
        claim = world.claim(tenant, profile)
    assert all(looks_at_few(each) for each in statements if "gpus.present" in each), "\n".join(statements)
    return str(claim.host).rpartition("-")[0]


def test_small_gpus_hide_no_larger_one_that_fits_exactly(world: World) -> None:
    fill(
        world,
        Pool(name="small", gpus=CROWD, shares=(500,), used_gib=1, of_gib=4),
        Pool(name="big", gpus=3, shares=(400,), used_gib=8),
        Pool(name="tight", gpus=1, shares=(399,), used_gib=56),
    )
    assert pool_of_claim(world, share=10, gib=8) == "tight"


def test_one_that_fits_badly_hides_none_that_fits_well(world: World) -> None:
    fill(
        world,
        Pool(name="lone", gpus=1, shares=(900,), used_gib=4),
        Pool(name="crowd", gpus=CROWD, shares=range(880, 900), used_gib=62),
        Pool(name="good", gpus=20, shares=(870,), used_gib=60),
    )
    assert pool_of_claim(world, share=10, gib=4) == "good"


def test_as_many_lower_shares_are_looked_at_as_gpus_are_compared(world: World) -> None:
    fill(
        world,
        Pool(name="crowd", gpus=CROWD, shares=(900,), used_gib=62),
        Pool(name="lower", gpus=LOOKED_AT - 1, shares=range(800, 800 + LOOKED_AT - 1), used_gib=62),
        Pool(name="last", gpus=1, shares=(700,), used_gib=1),
    )
    assert pool_of_claim(world, share=10, gib=4) == "last"


def test_one_over_committed_gpu_leaves_those_without_share_unseen(world: World) -> None:
    """On that GPU a claim counts less, so the walk has to start at GPUs with more used share."""
    fill(
        world,
        Pool(name="full", gpus=1, shares=(1000,), used_gib=64, columns={"fair_ratio_permille": 10000}),
        Pool(name="crowd", gpus=2 * CROWD, shares=range(700, 900, 2), used_gib=1),
        Pool(name="good", gpus=20, shares=(100,), used_gib=1),
    )
    assert pool_of_claim(world, share=500, gib=4) == "good"


def crowded(world: World) -> None:
    fill(
        world,
        Pool(name="crowd", gpus=CROWD, shares=(900,), used_gib=62),
        Pool(name="good", gpus=20, shares=(0,), used_gib=0),
    )


def test_claims_at_once_find_a_gpu_each_though_a_crowd_is_of_no_use(world: World) -> None:
    if world.database.is_sqlite:  # places one claim after the other
        return
    crowded(world)
    wanted = Wanted(share_permille=10, mem_bytes=4 * GIB)
    choice = candidates.best(wanted.shape, wanted.placement).with_for_update(of=Gpu)

    def hold(session: Session) -> None:
        session.execute(choice, parameters(session, wanted)).one()
        assert pool_of_claim(world, share=10, gib=4) == "good"

    world.database.run(hold)


def test_a_claim_waits_for_a_gpu_rather_than_to_look_at_all(world: World) -> None:
    if world.database.is_sqlite:  # places one claim after the other
        return
    crowded(world)
    found: list[str] = []
    claim = Thread(target=lambda: found.append(pool_of_claim(world, share=10, gib=4)))

    def hold(session: Session) -> None:
        session.execute(select(Gpu.id).where(Gpu.share_used == 0).with_for_update()).all()
        claim.start()
        while claim.is_alive() and not session.scalar(text("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")):
            time.sleep(0.01)
        assert claim.is_alive()

    world.database.run(hold)
    claim.join()
    assert found == ["good"]
