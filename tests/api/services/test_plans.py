# SPDX-License-Identifier: Apache-2.0
"""How PostgreSQL finds the rows of what tenants and hosts ask all the time: by an index, however many there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from vgpumgr_api.services import fleet

from tests.api.services.hearing import hearing
from tests.api.services.test_claim_cost import nodes
from tests.api.world import World, absent, gpu
from vgpumgr.wire.fleet import Bind

OF_ONE_ROW = {"installation", "usage_books"}


@contextmanager
def read_whole(world: World) -> Iterator[set[str]]:
    """Statements of the body that read a table from end to end, for want of an index."""
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
    """Deletions read the lives of all claims there ever were, and took ten times as long as claims."""
    if world.database.is_sqlite:  # has the same indexes
        return
    tenant = world.tenant("blue")
    profile = world.profile()
    agent = world.host(inventory=[gpu(types=(1,))])
    with read_whole(world) as found:
        claimed = world.claim(tenant.name, profile)
        vm = uuid4()
        world.run(fleet.bind, agent.name, claimed.id, Bind(vm_uuid=vm), actor=agent.actor)
        assert agent.report(desired=agent.desired(), slices=[absent(claimed.id, present=True, vm_uuid=vm)])
        world.delete(claimed.id)
        assert agent.confirm_gone(claimed.id)
    assert not found, "\n".join(found)
