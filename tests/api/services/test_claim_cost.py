# SPDX-License-Identifier: Apache-2.0
"""What a claim asks of the database: how many statements, and how much of the fleet they look at."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from sqlalchemy import event
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.services import claims, placement
from vgpumgr_api.services.idempotency import Once
from vgpumgr_api.services.obstacles import Wanted, parameters

from tests.api.world import GIB, World, gpu
from vgpumgr.wire.resources import Slice, SliceCreate


@contextmanager
def told(database: Database) -> Iterator[list[str]]:
    """Every statement that goes to the database meanwhile, but for the beginning and the end of transactions."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("BEGIN"):
            statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def claim_once(world: World, **members: Any) -> Slice:
    wanted = SliceCreate(tenant="blue", profile="small", **members)
    actor = world.operator

    return world.database.run(
        lambda session: claims.create_slice(session, actor, wanted, once=Once(str(uuid4()), "0" * 64))
    )


def test_a_claim_takes_few_statements(world: World) -> None:
    """Each is a round trip and costs the API's own processor time; that there be no more is why this test is here."""
    world.host(inventory=[gpu(types=(1,))])
    world.tenant("acme")
    world.tenant("blue", account="acme")
    world.profile(share=10, name="small")
    claim_once(world)
    with told(world.database) as statements:
        claim_once(world, vm_uuid=uuid4())
    assert len(statements) <= (11 if world.database.is_sqlite else 5), "\n".join(statements)


def test_a_claim_looks_at_few_hosts_however_many_there_are(world: World) -> None:
    """Hosts as a join were all read, and all of their GPUs sorted, whenever PostgreSQL found the fleet small enough."""
    if world.database.is_sqlite:  # has no other way than to look at one after the other
        return
    hosts = 60
    for _ in range(hosts):
        world.host(inventory=[gpu(f"0000:{number:02x}:00.0", types=(1, 4)) for number in range(4)])
    wanted = Wanted(share_permille=10, mem_bytes=GIB)
    statement = placement.best(wanted.shape, wanted.placement)

    def plan(session: Session) -> dict[str, Any]:
        connection = session.connection()
        connection.exec_driver_sql("ANALYZE")
        compiled = statement.compile(connection.engine)
        asked = compiled.construct_params(parameters(session, wanted))
        (found,) = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled}", asked).scalars()
        explained: dict[str, Any] = found[0]["Plan"]
        return explained

    looked_at = sum(
        node["Actual Rows"] * node["Actual Loops"]
        for node in nodes(world.database.run(plan))
        if node.get("Relation Name") in ("hosts", "host_reports")
    )
    assert 0 < looked_at <= 2 * placement.LOOKED_AT


def test_one_plan_serves_all_claims(world: World) -> None:
    """PostgreSQL keeps a plan that is made without the values of parameters, unless one made for them costs less.

    Then it plans for each claim, which took it as long as the claim. An index that only knows values that are in the
    statement itself told the two apart.
    """
    if world.database.is_sqlite:
        return
    world.host(inventory=[gpu(types=(1,))])
    world.tenant("blue")
    world.profile(share=10, name="small")
    for _ in range(8):  # by then it is prepared
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
            " WHERE statement LIKE 'UPDATE gpus%%' AND NOT from_sql"
        )
        asked = ", ".join(["NULL"] * count)
        return "\n".join(connection.exec_driver_sql(f"EXPLAIN EXECUTE {name}({asked})").scalars())

    explained = world.database.run(plan)
    assert "ix_gpus_over_committed" in explained
    assert "Seq Scan" not in explained, explained


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)
