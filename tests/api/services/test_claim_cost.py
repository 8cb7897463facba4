# SPDX-License-Identifier: Apache-2.0
"""What a claim asks of the database: how many statements, and how much of the fleet they read."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from vgpumgr_api.claims import claims
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.statements import change
from vgpumgr_api.installation import installation
from vgpumgr_api.placement import candidates, schedulable
from vgpumgr_api.placement.obstacles import Wanted, census, parameters
from vgpumgr_api.resources import idempotency
from vgpumgr_api.resources.idempotency import Once

from tests.api.conftest import Clock
from tests.api.services.hearing import hearing
from tests.api.services.refusals import refused
from tests.api.templates import Templates
from tests.api.world import GIB, World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Placement, Slice, SliceCreate


@contextmanager
def told(database: Database) -> Iterator[list[str]]:
    """Collects every statement of the block, except those that begin and end transactions."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            statements.append(statement)

    with hearing(database.engine, "before_cursor_execute", note):
        yield statements


def claim_once(world: World, **members: Any) -> Slice:
    wanted = SliceCreate(tenant="blue", profile="small", **members)
    actor = world.operator

    return world.database.run(
        lambda session: claims.create_slice(session, actor, wanted, once=Once(str(uuid4()), "0" * 64))
    )


def test_a_claim_takes_few_statements(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement is a round trip and costs processor time of the API; this test keeps their number down."""
    monkeypatch.setattr(idempotency, "SWEPT_EVERY", sys.maxsize)  # one claim of many also deletes old keys
    world.host(inventory=[gpu(types=(1,))])
    world.tenant("acme")
    world.tenant("blue", account="acme")
    world.profile(share=10, name="small")
    claim_once(world)
    with told(world.database) as statements:
        claim_once(world, vm_uuid=uuid4())
    assert len(statements) <= (11 if world.database.is_sqlite else 5), "\n".join(statements)


@pytest.mark.parametrize("selector", [{}, {"zone": "a"}])
def test_a_claim_looks_at_few_hosts_however_many_there_are(world: World, selector: dict[str, str]) -> None:
    """With a join, PostgreSQL read all hosts and sorted all their GPUs whenever it judged the fleet small enough. It
    did the same with GPUs for claims that select by labels, because it expected few GPUs to have the labels.
    """
    if world.database.is_sqlite:  # can only read one after the other
        return
    hosts = 60
    fleet_of(world, hosts, selector)
    wanted = Wanted(share_permille=10, mem_bytes=GIB, selector=selector)
    plan = world.database.run(lambda session: plan_of_best(session, wanted))

    def looked_at(*relations: str) -> int:
        found = (node for node in nodes(plan) if node.get("Relation Name") in relations)
        return sum(node["Actual Rows"] * node["Actual Loops"] for node in found)

    beyond = 0 if selector else candidates.LOOKED_AT_EACH  # all have the same used share
    assert 0 < looked_at("hosts", "host_reports") <= 2 * (candidates.LOOKED_AT + beyond)
    assert looked_at("host_labels") <= candidates.LOOKED_AT
    if selector:  # PostgreSQL may read such a small table whole, but not once for each candidate
        assert looked_at("gpus") <= 4 * hosts + candidates.LOOKED_AT


OF_NO_USE = [f"other-{number}" for number in range(6)]
GPUS_OF_EACH = 256
FITTING = 500
"""The used share of the GPUs that fit."""
BELOW, ABOVE, EMPTY = FITTING - 50, 950, 0


@pytest.fixture
def crowded(templates: Templates, clock: Clock, tmp_path: Path) -> Iterator[World]:
    """A host with GPUs that fit and hosts with many that do not, on PostgreSQL: SQLite does not report its reads."""
    with (
        templates.copied("postgresql", "crowded", make_crowded, tmp_path) as url,
        closing(Database(url, clock=clock)) as database,
    ):
        yield World(database)


def make_crowded(made: Database) -> None:
    schema.upgrade(made)
    made.run(installation.ensure)
    with closing(Database(made.engine.url.render_as_string(hide_password=False), clock=Clock())) as database:
        for name, gpus in {"fitting": candidates.LOOKED_AT, **dict.fromkeys(OF_NO_USE, GPUS_OF_EACH)}.items():
            inventory = [gpu(f"{each:04x}:00:00.0", mem_bytes=64 * GIB, types=(1, 4)) for each in range(gpus)]
            World(database).host(name, inventory=inventory)


@pytest.mark.parametrize(
    ("way", "why", "of_no_use", "shares"),
    [
        *((Placement.PACK, "small", share, shares) for share in (BELOW, ABOVE) for shares in (1, candidates.LOOKED_AT)),
        *((Placement.PACK, why, share, 100) for why in ("cordoned", "memory") for share in (BELOW, ABOVE)),
        (Placement.SPREAD, "cordoned", EMPTY, 100),
    ],
)
def test_gpus_of_no_use_are_not_all_looked_at(
    crowded: World, way: Placement, why: str, of_no_use: int, shares: int
) -> None:
    """During these reads, the claim holds its quota locks, so all other claims of its tenant wait."""
    mem_used = {"cordoned": 1, "small": 62, "memory": 64}[why] * GIB
    step = 1 if way is Placement.SPREAD else -1

    def use(session: Session) -> set[UUID]:
        change(session, update(Gpu).values(share_used=FITTING, mem_used=GIB))
        rest = session.scalars(select(Gpu.id).join(Host, Host.id == Gpu.host_id).where(Host.name != "fitting")).all()
        for number in range(shares):
            some = update(Gpu).where(Gpu.id.in_(rest[number::shares]))
            change(session, some.values(share_used=of_no_use + step * number, mem_used=mem_used))
        return set(session.scalars(select(Gpu.id).where(Gpu.id.not_in(rest))))

    fitting = crowded.database.run(use)
    if why == "cordoned":
        for name in OF_NO_USE:
            crowded.set_host(name, state="cordoned")
    while crowded.database.run(schedulable.follow):
        pass
    wanted = Wanted(share_permille=10, mem_bytes=4 * GIB, placement=way)

    def plan_as_of_many(session: Session) -> dict[str, Any]:
        """Without these settings, PostgreSQL reads such small tables whole."""
        for other in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "material"):
            session.connection().exec_driver_sql(f"SET LOCAL enable_{other} = off")
        assert session.scalar(candidates.best(wanted.shape, way), parameters(session, wanted)) in fitting
        return plan_of_best(session, wanted)

    plan = crowded.database.run(plan_as_of_many)
    looked_at = {
        table: sum(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            for node in nodes(plan)
            if node.get("Relation Name") == table and node["Node Type"] != "Index Only Scan"
        )
        for table in ("gpus", "hosts")
    }
    beyond = candidates.LOOKED_AT * candidates.LOOKED_AT_EACH
    assert 0 < looked_at["hosts"] <= candidates.LOOKED_AT + beyond
    # Each walked GPU is read, checked, and read again for the last and for the largest of them.
    walked = 4 * candidates.WALKED if why == "small" and of_no_use == ABOVE else 0
    assert looked_at["gpus"] <= walked + 4 * candidates.LOOKED_AT + 2 * beyond


def test_a_claim_that_nothing_fits_looks_at_all_gpus_twice_and_says_why(world: World) -> None:
    """Once to place it, once to find the reasons; each look takes long on a large fleet."""
    world.host(inventory=[gpu(types=(1,))])
    world.tenant("blue")
    world.profile(share=10, gib=2, name="small")
    for vm in (None, uuid4()):
        with told(world.database) as statements, refused(Code.CAPACITY_NONE):
            claim_once(world, vm_uuid=vm)
        looks = ["few" if looks_at_few(each) else "all" for each in statements if "gpus.present" in each]
        assert looks == ["few", "few", "all", "all"], "\n".join(statements)
        assert sum("count(*)" in each for each in statements) == 1


def looks_at_few(statement: str) -> bool:
    """Returns whether the statement comes from `candidates.best`."""
    return "WITH RECURSIVE" in statement


@pytest.mark.parametrize(("gib", "zone", "looks"), [(1, "a", True), (8, "a", False), (1, "b", False)])
def test_what_no_gpu_can_have_is_looked_for_on_none(world: World, gib: int, zone: str, *, looks: bool) -> None:
    if world.database.is_sqlite:  # does not report its reads
        return
    fleet_of(world, 2, {"zone": "a"})
    wanted = Wanted(share_permille=10, mem_bytes=gib * GIB, selector={"zone": zone})
    compiled = candidates.anywhere(wanted.shape).compile(world.database.engine)
    plan = world.database.run(
        lambda session: plan_of(session, str(compiled), compiled.construct_params(parameters(session, wanted)))
    )
    looked_at = [node["Actual Loops"] > 0 for node in nodes(plan) if node.get("Alias") == "gpus"]
    assert looked_at == [looks]


def test_why_no_gpu_fits_takes_one_look_at_each_table(world: World) -> None:
    """Reading labels and types GPU by GPU took most of the time, and so did compiling the statement."""
    if world.database.is_sqlite:  # has no other plan
        return
    fleet_of(world, 60, {"zone": "a"})
    for wanted in (
        Wanted(share_permille=10, mem_bytes=GIB, selector={"zone": "b"}),
        Wanted(share_permille=10, mem_bytes=8 * GIB, selector={"zone": "a"}),
    ):
        plan = world.database.run(lambda session, wanted=wanted: census_plan(session, wanted))
        loops = [
            node["Actual Loops"] for node in nodes(plan) if node.get("Relation Name") in ("host_labels", "gpu_types")
        ]
        assert max(loops) == 1, loops
    assert world.database.run(lambda session: session.connection().exec_driver_sql("SHOW jit").scalar()) == "off"


def test_how_much_memory_a_claim_wants_is_unknown_where_the_index_is_walked(world: World) -> None:
    """From statistics, PostgreSQL knows how many GPUs have little memory left. A plan for one claim then seems cheaper
    than a general plan, so it plans each claim, which took three times as long as the claim.
    """
    if world.database.is_sqlite:
        return
    wanted = Wanted(share_permille=10, mem_bytes=GIB)
    compiled = candidates.best(wanted.shape, wanted.placement).compile(world.database.engine)
    assert "gpus_1.mem_used - gpus_1.mem_bytes <= (SELECT -" in " ".join(str(compiled).split()), str(compiled)


def test_one_plan_serves_all_claims(world: World) -> None:
    """PostgreSQL keeps a generic plan, unless a plan for the present parameters is cheaper.

    In that case it plans for each claim, which took as long as the claim. The cause was an index that can only be used
    for literal values in the statement.
    """
    if world.database.is_sqlite:
        return
    world.host(inventory=[gpu(types=(1,))])
    world.tenant("blue")
    world.profile(share=10, name="small")
    for _ in range(8):  # prepared by then
        claim_once(world, vm_uuid=uuid4())

    def plan(session: Session) -> str:
        connection = session.connection()
        for each in (
            "SET LOCAL enable_seqscan = off",
            "SET LOCAL plan_cache_mode = force_generic_plan",
            "DISCARD PLANS",
        ):
            connection.exec_driver_sql(each)
        ((name, count),) = connection.exec_driver_sql(
            "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements"
            " WHERE statement LIKE '%%UPDATE gpus%%' AND NOT from_sql"
        )
        asked = ", ".join(["NULL"] * count)
        return "\n".join(connection.exec_driver_sql(f"EXPLAIN EXECUTE {name}({asked})").scalars())

    explained = world.database.run(plan)
    assert "ix_gpus_over_committed" in explained
    assert "Seq Scan" not in explained, explained


def fleet_of(world: World, hosts: int, labels: dict[str, str]) -> None:
    """Makes hosts with these labels and four GPUs each."""
    for number in range(hosts):
        world.host(f"one-{number}", inventory=[gpu(f"0000:{each:02x}:00.0", types=(1, 4)) for each in range(4)])
        if labels:
            world.set_host(f"one-{number}", labels=labels)


def plan_of(session: Session, statement: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the plan with which PostgreSQL executed the statement."""
    connection = session.connection()
    connection.exec_driver_sql("ANALYZE")
    (found,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", asked).scalars()
    explained: dict[str, Any] = found[0]["Plan"]
    return explained


def plan_of_best(session: Session, wanted: Wanted) -> dict[str, Any]:
    compiled = candidates.best(wanted.shape, wanted.placement).compile(session.get_bind())
    return plan_of(session, str(compiled), compiled.construct_params(parameters(session, wanted)))


def census_plan(session: Session, wanted: Wanted) -> dict[str, Any]:
    said: list[tuple[str, Mapping[str, Any]]] = []

    def note(_connection: Any, _cursor: Any, statement: str, asked: Mapping[str, Any], *_: Any) -> None:
        said.append((statement, asked))

    with hearing(session.get_bind(), "before_cursor_execute", note):
        census(session, wanted)
    return plan_of(session, *said[-1])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
