# SPDX-License-Identifier: Apache-2.0
"""Migrations produce the tables of the models, once, and no program runs on tables that it does not know."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, inspect, text
from sqlalchemy.exc import IntegrityError
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base

from tests.api.world import World


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    opened = Database(empty_url)
    yield opened
    opened.close()


def test_migrations_from_nothing_make_exactly_the_models(empty: Database) -> None:
    schema.upgrade(empty)
    assert schema.differences(empty) == []
    schema.require_current(empty)


def test_every_check_of_the_models_is_in_the_migrations(empty: Database) -> None:
    """alembic does not compare checks. The test compares them with those of create_all, because engines rewrite
    conditions.
    """
    schema.upgrade(empty)
    migrated = checks(empty)
    with empty.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert migrated == checks(empty)
    assert migrated.keys() == Base.metadata.tables.keys()
    named = {
        constraint.name
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert {name for table in migrated.values() for name in table} == named


def checks(database: Database) -> dict[str, dict[str, str]]:
    with database.engine.connect() as connection:
        found = inspect(connection)
        return {
            table: {
                str(check["name"]): " ".join(check["sqltext"].split()) for check in found.get_check_constraints(table)
            }
            for table in Base.metadata.tables
        }


def test_differences_are_seen(empty: Database) -> None:
    schema.upgrade(empty)
    with empty.engine.begin() as connection:
        connection.execute(text("ALTER TABLE gpus ADD COLUMN colour TEXT"))
    assert schema.differences(empty) != []


def test_upgrading_again_changes_nothing(empty: Database) -> None:
    schema.upgrade(empty)
    schema.upgrade(empty)
    schema.require_current(empty)


def test_processes_that_upgrade_at_once_do_not_collide(empty_url: str) -> None:
    together, failed = threading.Barrier(4), []

    def upgrade() -> None:
        own = Database(empty_url)
        together.wait()
        try:
            schema.upgrade(own)
            schema.require_current(own)
        except Exception as error:
            failed.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=upgrade) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []


def test_an_empty_and_a_newer_database_are_refused(empty: Database) -> None:
    with pytest.raises(schema.SchemaError, match="vgpumgr-api init"):
        schema.require_current(empty)
    schema.upgrade(empty)
    with empty.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for attempt in (schema.require_current, schema.upgrade):
        with pytest.raises(schema.SchemaError, match="newer"):
            attempt(empty)


def test_an_older_database_is_refused(empty: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.upgrade(empty)
    monkeypatch.setattr(schema, "newest", lambda: "9998")
    with pytest.raises(schema.SchemaError, match="vgpumgr-api migrate"):
        schema.require_current(empty)


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE gpus SET share_used = 1001",
        "UPDATE gpus SET share_used = -1",
        "UPDATE gpus SET mem_used = mem_bytes + 1",
        "UPDATE gpus SET mem_bytes = 0",
        "UPDATE quotas SET slices_used = -1",
        "UPDATE quotas SET share_limit = -1",
        "UPDATE slices SET state = 'gone'",
        "UPDATE slices SET state = 'releasing'",
        "UPDATE slices SET state = 'lost'",
        "UPDATE slices SET type_mem_bytes = 1",
        "UPDATE installation SET id = 2",
        "DELETE FROM profiles",
        "DELETE FROM gpus",
        "DELETE FROM hosts",
        "DELETE FROM tenants",
        "UPDATE tenants SET name = 'same'",
        "UPDATE tenants SET external_id = 'same'",
        "UPDATE tenants SET external_id = '' WHERE name = 'acme'",
        "UPDATE tokens SET tenant_id = NULL, role = 'tenant'",
    ],
)
def test_the_database_itself_refuses_nonsense(world: World, wrong: str) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    world.claim("lab", world.profile())
    with pytest.raises(IntegrityError), world.database.engine.begin() as connection:
        connection.execute(text(wrong))


def test_sqlite_keeps_what_was_committed(tmp_path: Any) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    with database.engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    database.close()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
