# SPDX-License-Identifier: Apache-2.0
"""Transactions are atomic, repeated when the database aborts them, and refused when it is away."""

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from vgpumgr_api.db import database as database_module
from vgpumgr_api.db.database import Database, TryAgain
from vgpumgr_api.db.models import Tenant
from vgpumgr_api.installation import health, liveness
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import tenants

from tests.api.cluster import Cluster
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TenantCreate


def names(world: World) -> set[str]:
    return {tenant.name for tenant in world.run(tenants.list_tenants, PageRequest()).items}


def test_whatever_is_raised_rolls_back(world: World) -> None:
    def fail(session: Session) -> None:
        tenants.create_tenant(session, world.operator, TenantCreate(name="acme"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.database.run(fail)
    assert names(world) == set()


def test_a_transaction_that_asks_to_be_repeated_is_and_not_forever(world: World) -> None:
    attempts = []

    def twice(session: Session) -> int:
        attempts.append(tenants.create_tenant(session, world.operator, TenantCreate(name="acme")))
        if len(attempts) < 3:
            raise TryAgain
        return len(attempts)

    assert world.database.run(twice) == 3
    assert names(world) == {"acme"}

    def never(session: Session) -> None:
        raise TryAgain

    with refused(Code.DATABASE_BUSY):
        world.database.run(never)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO liveness (id, since, at) VALUES (2, '2026-01-01', '2026-01-01')", 1),  # CHECK
        ("UPDATE tenants SET created_at = NULL", 1),
        ("INSERT INTO liveness SELECT * FROM liveness", 3),  # PRIMARY KEY
        ("DELETE FROM tenants WHERE account_id IS NULL", 3),  # FOREIGN KEY
    ],
)
def test_a_row_that_never_fits_is_not_tried_for_long(world: World, statement: str, expected: int) -> None:
    """A retry helps only if another row was in the way, and the second attempt has seen that row."""
    world.tenant(account=world.tenant().name)
    world.database.run(liveness.beat)
    attempts = []

    def never(session: Session) -> None:
        attempts.append(1)
        session.execute(text(statement))

    with pytest.raises(IntegrityError):
        world.database.run(never)
    assert len(attempts) == expected


def test_of_two_that_take_a_name_at_once_one_is_told_so(world: World) -> None:
    together, outcomes = threading.Barrier(4), []

    def create() -> None:
        together.wait()
        try:
            world.run(tenants.create_tenant, TenantCreate(name="acme"))
            outcomes.append("made")
        except Exception as error:
            outcomes.append(getattr(error, "code", error))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["made", *[Code.OBJECT_EXISTS] * 3]


def test_a_read_only_transaction_sees_one_moment_and_writes_nothing(world: World, engine_name: str) -> None:
    world.tenant("acme")
    read = text("SELECT count(*) FROM tenants")

    def look(session: Session) -> tuple[int, int]:
        before = session.execute(read).scalar_one()
        other = threading.Thread(target=world.tenant, args=("lab",))
        other.start()
        other.join(20)
        assert not other.is_alive()
        return before, session.execute(read).scalar_one()

    assert world.database.run(look, read_only=True) == (1, 1)
    assert names(world) == {"acme", "lab"}
    if engine_name == "postgresql":
        with pytest.raises(Exception, match="read-only transaction"):
            world.database.run(lambda session: session.execute(update(Tenant).values(generation=9)), read_only=True)


def test_another_process_writes_before_or_after_a_whole_transaction_of_sqlite(
    database_url: str, world: World, engine_name: str
) -> None:
    if engine_name == "postgresql":
        pytest.skip("PostgreSQL locks rows")
    world.tenant("acme")
    grow = update(Tenant).values(generation=Tenant.generation + 1)
    other = Database(database_url)
    writer = threading.Thread(target=other.run, args=(lambda session: session.execute(grow),))
    seen: list[int] = []

    def look(session: Session) -> None:
        seen.append(session.execute(text("SELECT generation FROM tenants")).scalar_one())
        if len(seen) == 1:
            writer.start()
        writer.join(0.5)
        session.execute(grow)

    world.database.run(look)
    writer.join(20)
    other.close()
    assert seen == [1]
    assert world.run(tenants.get_tenant, "acme").generation == 3


def test_a_value_that_does_not_fit_is_refused(world: World, engine_name: str) -> None:
    if engine_name == "sqlite":
        pytest.skip("SQLite stores anything")
    with refused(Code.FIELD_INVALID):
        world.database.run(lambda session: session.execute(update(Tenant).values(name="a\0")))


def test_deadlocks_are_resolved(world: World, engine_name: str) -> None:
    """Two transactions lock the same rows in opposite order; both are carried out."""
    if engine_name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    world.tenant("a")
    world.tenant("b")
    crossed, carried_out = threading.Barrier(2), threading.Event()
    attempts: list[str] = []

    def lock(first: str, second: str) -> None:
        def change(session: Session) -> None:
            attempts.append(first)
            again = len(attempts) > 2
            if again:  # otherwise the victim could lock its first row again before the other transaction wakes up
                assert carried_out.wait(20)
            session.execute(update(Tenant).where(Tenant.name == first).values(generation=Tenant.generation + 1))
            if not again:
                crossed.wait(20)
            session.execute(update(Tenant).where(Tenant.name == second).values(generation=Tenant.generation + 1))

        world.database.run(change)
        carried_out.set()

    threads = [threading.Thread(target=lock, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(attempts) == 3
    assert [world.run(tenants.get_tenant, name).generation for name in ("a", "b")] == [3, 3]


def test_a_writer_that_waits_too_long_is_refused(
    database_url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WAIT_S", 0.2)
    monkeypatch.setattr(database_module, "ATTEMPTS", 2)
    world.tenant("acme")
    impatient = Database(database_url)
    grow = update(Tenant).values(generation=Tenant.generation + 1)
    with world.database.engine.begin() as holder:
        holder.execute(grow)
        with refused(Code.DATABASE_BUSY):
            impatient.run(lambda session: session.execute(grow))
    impatient.run(lambda session: session.execute(grow))
    impatient.close()
    assert world.run(tenants.get_tenant, "acme").generation == 3


def test_who_waits_too_long_for_another_writer_of_this_process_is_refused(
    database_url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "WAIT_S", 0.2)
    monkeypatch.setattr(database_module, "ATTEMPTS", 2)
    world.tenant("acme")
    impatient = Database(database_url)
    grow = update(Tenant).values(generation=Tenant.generation + 1)
    there, go_on = threading.Event(), threading.Event()

    def hold(session: Session) -> None:
        session.execute(grow)
        there.set()
        go_on.wait(20)

    holder = threading.Thread(target=impatient.run, args=(hold,))
    holder.start()
    assert there.wait(20)
    with refused(Code.DATABASE_BUSY):
        impatient.run(lambda session: session.execute(grow))
    go_on.set()
    holder.join(20)
    impatient.run(lambda session: session.execute(grow))
    impatient.close()
    assert world.run(tenants.get_tenant, "acme").generation == 3


SLEEPS = {
    "postgresql": "SELECT pg_sleep(4)",
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3e6) SELECT count(*) FROM n",
}
# PostgreSQL applies the limit to every statement, including those that open a connection; SQLite only to long
# computations.
PATIENCE_S = {"postgresql": 2, "sqlite": 0.1}


def test_a_statement_that_takes_too_long_is_refused_unless_nobody_waits(
    database_url: str, world: World, engine_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = text(SLEEPS[engine_name])
    patience_s = PATIENCE_S[engine_name]
    monkeypatch.setattr(database_module, "STATEMENT_S", patience_s)
    serving = Database(database_url, serving=True)
    begun: list[Session] = []

    def dawdle(session: Session) -> None:
        begun.append(session)
        session.execute(update(Tenant).values(generation=Tenant.generation + 1))
        session.execute(sleep)

    world.tenant("acme")
    with refused(Code.DATABASE_BUSY) as caught:
        serving.run(dawdle)
    assert caught.refusal is not None
    assert f"took longer than {patience_s} s" in caught.refusal.detail
    assert len(begun) == 1, "the next would take as long"
    assert world.run(tenants.get_tenant, "acme").generation == 1
    serving.run(dawdle, patient=True)
    with refused(Code.DATABASE_BUSY):
        serving.run(dawdle)
    assert world.run(tenants.get_tenant, "acme").generation == 2
    serving.close()
    world.database.run(dawdle)  # no client waits for an administrator's command
    assert world.run(tenants.get_tenant, "acme").generation == 3


def test_a_new_file_can_be_opened_while_another_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    database = Database(f"sqlite:///{path}")
    done = threading.Timer(0.2, other.close)
    done.start()
    with database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    done.join()
    database.close()


def test_a_database_that_cannot_be_reached_is_busy(tmp_path: Path) -> None:
    for url in (f"postgresql://postgres@/nothing?host={tmp_path}", f"sqlite:///{tmp_path}/no/such/directory/x.db"):
        away = Database(url)
        with refused(Code.DATABASE_BUSY):
            away.run(health.check, read_only=True)
        away.close()


def test_connections_heal_after_the_server_was_killed(postgresql: Cluster, postgresql_template: str) -> None:
    database = Database(postgresql.create("killed", template=postgresql_template))
    world = World(database)
    world.tenant("acme")
    postgresql.restart()
    assert names(world) == {"acme"}

    def die(session: Session) -> None:
        tenants.create_tenant(session, world.operator, TenantCreate(name="lost"))
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with refused(Code.DATABASE_BUSY):
        database.run(die)
    database.run(health.check, read_only=True)
    assert names(world) == {"acme"}

    attempts: list[str] = []

    def die_once(session: Session) -> None:
        attempts.append("begun")
        tenants.create_tenant(session, world.operator, TenantCreate(name="kept"))
        if len(attempts) == 1:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    database.run(die_once)
    assert len(attempts) == 2
    assert names(world) == {"acme", "kept"}
    database.close()


def test_the_connection_that_was_used_last_is_used_next(database: Database) -> None:
    """The server has already prepared that connection's statements; with connections in turn, all would be cold."""
    if database.is_sqlite:
        return  # its connections have no server processes

    def backend(session: Session) -> int:
        return int(session.scalars(text("SELECT pg_backend_pid()")).one())

    with database.engine.connect() as first, database.engine.connect() as second:
        backends = {int(each.scalar(text("SELECT pg_backend_pid()")) or 0) for each in (first, second)}
    used = {database.run(backend) for _ in range(4)}
    assert len(backends) == 2
    assert len(used) == 1


def test_a_commit_that_is_cut_off_is_not_answered_as_done(postgresql: Cluster, postgresql_template: str) -> None:
    database = Database(postgresql.create("cut", template=postgresql_template))
    world = World(database)

    def cut(session: Session) -> None:
        tenants.create_tenant(session, world.operator, TenantCreate(name="acme"))
        session.flush()
        own = session.scalar(text("SELECT pg_backend_pid()"))
        with database.engine.connect() as other:
            assert other.scalar(text("SELECT pg_terminate_backend(:own, 60000)"), {"own": own})

    with refused(Code.DATABASE_BUSY):
        database.run(cut)
    assert names(world) == set()
    database.close()
