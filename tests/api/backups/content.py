# SPDX-License-Identifier: Apache-2.0
"""What a database holds, as a value that can be compared; and a database with a few rows of most kinds."""

from typing import Any

from sqlalchemy import select
from vgpumgr_api.db import schema  # noqa: F401  # all tables belong to Base.metadata
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base
from vgpumgr_api.fleet import hosts

from tests.api.world import World
from vgpumgr.wire.resources import HostCreate

CHANGED_BY_RESTORE = {
    "installation": {"epoch"},
    "hosts": {"epoch_confirmed", "desired_generation", "generation", "enroll_hash", "enroll_expires_at"},
    "host_reports": {"unknown_slices", "boot_id"},
}
ADDED_TO_BY_RESTORE = {"events", "audit", "former_secrets"}


def content(database: Database, *, but_for_restore: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Returns every row of every table. `but_for_restore`: without the columns that a restore changes by design."""
    found = {}
    with database.engine.connect() as connection:
        for table in Base.metadata.sorted_tables:
            hidden = CHANGED_BY_RESTORE.get(table.name, set()) if but_for_restore else set()
            rows = connection.execute(select(table).order_by(*table.primary_key)).mappings()
            found[table.name] = [{name: row[name] for name in row if name not in hidden} for row in rows]
    return found


def in_use(database: Database) -> World:
    """Accounts, projects, claims, a tombstone, hosts (one is not enrolled), and events that were read."""
    world = World(database)
    world.tenant("acme")
    world.tenant("acme-web", account="acme")
    profile = world.profile(100, name="small")
    agent = world.host("one")
    kept, gone = (world.claim("acme-web", profile) for _ in range(2))
    world.delete(gone.id)
    assert agent.report(desired=agent.desired())
    world.run(hosts.create_host, HostCreate(name="two"))
    world.tenant_actor("acme")
    world.events()
    assert world.slice(kept.id).state == "claimed"
    return world
