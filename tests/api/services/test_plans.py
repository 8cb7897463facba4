# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL finds the rows of frequent or urgent queries by an index, however many rows there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, text
from vgpumgr_api.db.records import AuditEntry
from vgpumgr_api.events.audit import AuditFilter
from vgpumgr_api.fleet import agents

from tests.api.services.hearing import hearing
from tests.api.services.test_claim_cost import nodes, plan_of
from tests.api.services.test_metering import Told
from tests.api.world import World, absent, gpu
from vgpumgr.wire.fleet import Bind

OF_ONE_ROW = {"installation", "usage_books"}


@contextmanager
def read_whole(world: World) -> Iterator[set[str]]:
    """Collects the statements of the block that read a whole table because an index is missing."""
    found: set[str] = set()

    def explain(connection: Any, _cursor: Any, statement: str, asked: Any, _context: Any, many: bool) -> None:
        if statement.split(maxsplit=1)[0] not in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH"):
            return
        with connection.connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", asked[0] if many else asked)
            ((plan,),) = cursor.fetchall()
        read = {node["Relation Name"] for node in nodes(plan[0]["Plan"]) if node["Node Type"] == "Seq Scan"}
        if read - OF_ONE_ROW:
            found.add(statement)

    with hearing(world.database.engine, "before_cursor_execute", explain):
        yield found


def test_from_claim_to_release_nothing_reads_a_table_from_end_to_end(world: World) -> None:
    """Deletions read the grants of all claims that ever existed, and took ten times as long as claims."""
    if world.database.is_sqlite:  # has the same indexes
        return
    tenant = world.tenant("blue")
    profile = world.profile()
    agent = world.host(inventory=[gpu(types=(1,))])
    with read_whole(world) as found:
        claimed = world.claim(tenant.name, profile)
        vm = uuid4()
        world.run(agents.bind, agent.name, claimed.id, Bind(vm_uuid=vm), actor=agent.actor)
        assert agent.report(desired=agent.desired(), slices=[absent(claimed.id, present=True, vm_uuid=vm)])
        world.delete(claimed.id)
        assert agent.confirm_gone(claimed.id)
    assert not found, "\n".join(found)


OF_OTHERS = (
    "INSERT INTO meters SELECT gen_random_uuid(), gen_random_uuid(), 1, now(), 7 FROM generate_series(1, 20000)",
    "INSERT INTO meter_counts SELECT id, 7, 'x', 'x', 1, 1, 1, 1, 1 FROM meters",
    "INSERT INTO usage_unbooked SELECT now(), id, 'x', 'x', 'implausible', 1, 1, 1, 1, 1 FROM meters",
)


@pytest.mark.usefixtures("database_url")  # new pages, because the test counts pages
def test_what_a_host_counts_is_booked_without_a_look_at_what_others_counted(world: World) -> None:
    if world.database.is_sqlite:
        return
    world.tenant("acme")
    agent = world.host()
    world.claim("acme", world.profile())
    told = Told(agent)
    told.tell(told.reading(1))
    with world.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (*OF_OTHERS, "ANALYZE"):
            connection.execute(text(statement))
    pages: dict[str, int] = {}

    def explain(connection: Any, _cursor: Any, statement: str, asked: Any, *_: Any) -> None:
        if not statement.startswith(("SELECT", "WITH")):
            return
        with connection.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", asked)
            ((plan,),) = cursor.fetchall()
        pages[statement] = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

    with hearing(world.database.engine, "before_cursor_execute", explain):
        told.tell(told.reading(5), told.reading(6, tenant="gone"))
    for table in ("meters", "meter_counts", "usage_unbooked"):
        assert any(table in statement for statement in pages)
    assert max(pages.values()) < 40, pages


@pytest.mark.parametrize("member", ["request_id", "object"])
def test_what_a_request_did_is_found_in_the_audit_without_a_look_at_all_of_it(world: World, member: str) -> None:
    if world.database.is_sqlite:
        return
    entries = """
        INSERT INTO audit (at, action, actor, role, source, request_id, object, detail)
        SELECT now(), 'x', 'x', 'admin', 'x', n, n, '{}' FROM generate_series(1, 2000) n
    """
    world.database.run(lambda session: session.execute(text(entries)))
    with world.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE audit"))
    wanted = select(AuditEntry).where(*AuditFilter(**{member: "77"}).conditions()).order_by(AuditEntry.id).limit(100)
    compiled = str(wanted.compile(world.database.engine, compile_kwargs={"literal_binds": True}))
    plan = world.database.run(lambda session: plan_of(session, compiled, {}))
    assert sum(each["Actual Rows"] + each.get("Rows Removed by Filter", 0) for each in nodes(plan)) < 10
