# SPDX-License-Identifier: Apache-2.0
"""A restore on either engine: it brings back all content, overwrites nothing that must stay, and changes nothing if it
fails.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import create_engine, text
from vgpumgr_api.admin import ACTOR
from vgpumgr_api.backups import make, restore
from vgpumgr_api.backups.file import BackupError, Header, new_file, write_body, write_header
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.installation import installation
from vgpumgr_api.main import main

from tests.api.backups.content import ADDED_TO_BY_RESTORE, content, in_use
from tests.api.cluster import Cluster
from tests.api.concurrency.audit import Audit
from tests.api.world import World


@pytest.fixture
def used(database: Database) -> Database:
    in_use(database)
    return database


@pytest.fixture
def backup(used: Database, tmp_path: Path) -> Path:
    path = tmp_path / "a.backup"
    make.make(used, path)
    return path


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    database = Database(empty_url)
    yield database
    database.close()


def back(database: Database, path: Path, *, force: bool = False) -> tuple[Header, UUID]:
    return restore.restore(database, path, ACTOR, force=force)


def as_before(database: Database, before: dict[str, list[dict[str, Any]]]) -> None:
    """All rows are back, and the restore added only its own event."""
    after = content(database, but_for_restore=True)
    for table in ADDED_TO_BY_RESTORE:
        after[table] = after[table][: len(before[table])] if table != "former_secrets" else before[table]
    assert after == before
    schema.require_current(database)
    assert schema.differences(database) == []


def test_into_an_empty_database_everything_comes_back(used: Database, backup: Path, empty: Database) -> None:
    before = content(used, but_for_restore=True)
    assert all(before[table] for table in ("tenants", "quotas", "slices", "tokens", "events", "audit", "host_reports"))
    back(empty, backup)
    as_before(empty, before)


def test_over_what_was_done_since_only_by_force(used: Database, database_url: str, backup: Path) -> None:
    before = content(used, but_for_restore=True)
    world = in_use_later(used)
    since = content(used)
    with pytest.raises(BackupError, match="--force"):
        back(used, backup)
    assert content(used) == since
    back(used, backup, force=True)
    as_before(used, before)
    # New rows get numbers above those of the restored rows.
    world.tenant("later-still")
    assert Audit(database_url).violations() == []


def in_use_later(database: Database) -> World:
    world = World(database)
    world.tenant("later")
    world.host("later")
    return world


def test_the_epoch_is_new_and_nobody_acts_on_old_knowledge(used: Database, backup: Path) -> None:
    with used.engine.connect() as connection:
        epoch = connection.execute(text("SELECT epoch FROM installation")).scalar()
    header, _ = back(used, backup, force=True)
    with used.engine.connect() as connection:
        assert connection.execute(text("SELECT epoch FROM installation")).scalar() != epoch
        assert connection.execute(text("SELECT count(*) FROM hosts WHERE epoch_confirmed")).scalar() == 0
        assert connection.execute(text("SELECT count(*) FROM hosts WHERE enroll_hash IS NOT NULL")).scalar() == 0
        assert connection.execute(text("SELECT count(*) FROM host_reports WHERE unknown_slices = 0")).scalar() == 0
        entries = connection.execute(text("SELECT action, detail FROM audit ORDER BY id DESC LIMIT 2")).all()
    assert [entry.action for entry in entries] == ["database.restored", "epoch.new"]
    assert all(header.made_at.isoformat() in str(entry.detail) for entry in entries)


def test_a_backup_of_one_engine_is_restored_on_the_other(
    used: Database, backup: Path, postgresql: Cluster, tmp_path: Path
) -> None:
    before = content(used, but_for_restore=True)
    other = Database(postgresql.create("other_engine") if used.is_sqlite else f"sqlite:///{tmp_path / 'other.db'}")
    try:
        back(other, backup)
        as_before(other, before)
    finally:
        other.close()
        if used.is_sqlite:
            postgresql.drop("other_engine")


def test_another_installations_backup_is_refused_even_by_force(backup: Path, empty: Database) -> None:
    """The exception is a database that was not used yet, such as the one that a playbook creates."""
    schema.upgrade(empty)
    empty.run(installation.ensure)
    in_use_later(empty)
    since = content(empty)
    with pytest.raises(BackupError, match="another installation"):
        back(empty, backup, force=True)
    assert content(empty) == since


def test_a_fresh_database_is_overwritten_by_force(used: Database, backup: Path, empty: Database) -> None:
    before = content(used, but_for_restore=True)
    schema.upgrade(empty)
    empty.run(installation.ensure)
    with pytest.raises(BackupError, match="--force"):
        back(empty, backup)
    back(empty, backup, force=True)
    as_before(empty, before)


def test_somebody_elses_database_is_left_alone(backup: Path, empty: Database) -> None:
    with empty.engine.begin() as connection:
        connection.execute(text("CREATE TABLE payroll (id INTEGER)"))
    with pytest.raises(BackupError, match="payroll"):
        back(empty, backup, force=True)


def test_one_that_fails_in_the_middle_has_changed_nothing(
    used: Database, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = content(used)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("power cut")

    for step in ("_load", "_set_row_numbers", "installation.restored"):
        monkeypatch.setattr(f"vgpumgr_api.backups.restore.{step}", fail)
        with pytest.raises(RuntimeError, match="power cut"):
            back(used, backup, force=True)
        monkeypatch.undo()
        assert content(used) == since
    back(used, backup, force=True)


def test_a_backup_of_an_older_release_is_brought_up_to_date(empty: Database, tmp_path: Path) -> None:
    """The file is like one from release 0001: without the columns and tables of later releases."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    tenant, token = uuid4(), uuid4()
    lines = [
        {"table": "installation", "columns": {"id": "integer", "epoch": "uuid", "created_at": "instant"}},
        [1, str(uuid4()), at.isoformat()],
        {
            "table": "tenants",
            "columns": {
                "id": "uuid",
                "name": "text",
                "account_id": "uuid",
                "generation": "integer",
                "created_at": "instant",
            },
        },
        [str(tenant), "acme", None, 1, at.isoformat()],
        {
            "table": "tokens",
            "columns": {
                "id": "uuid",
                "secret_hash": "text",
                "role": "text",
                "tenant_id": "uuid",
                "host_id": "uuid",
                "created_at": "instant",
                "expires_at": "instant",
            },
        },
        [str(token), "0" * 64, "tenant", str(tenant), None, at.isoformat(), None],
    ]
    path = tmp_path / "old.backup"
    with new_file(path) as file:
        rows = write_body(file, lines)
        write_header(
            file,
            Header(release="0.0.1", revision="0001", epoch=UUID(int=1), installed_at=at, made_at=at, rows=rows),
        )
    back(empty, path)
    schema.require_current(empty)
    assert [row["name"] for row in content(empty)["tenants"]] == ["acme"]
    assert [(row["id"], row["scopes"]) for row in content(empty)["tokens"]] == [(token, None)]


def test_by_command(
    used: Database, database_url: str, empty_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here.toml", tmp_path / "there.toml"
    here.write_text(f'database = "{database_url}"\n')
    there.write_text(f'database = "{empty_url}"\n')
    file = tmp_path / "b.backup"
    before = content(used, but_for_restore=True)

    def run(*words: str) -> tuple[int, str, str]:
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        return status, said.out.strip(), said.err.strip()

    status, output, _ = run("backup", "--config", str(here), str(file))
    assert (status, output.startswith(f"{file}: ")) == (0, True)
    assert run("backup", "--config", str(here), str(file))[2].endswith("exists; name a file that does not")
    status, output, _ = run("restore", "--check", "--config", str(there), str(file))
    assert (status, "rows as of" in output) == (0, True)
    status, output, errors = run("restore", "--config", str(there), str(file))
    assert (status, output) == (0, "")
    assert errors.endswith("vgpumgr host confirm-epoch HOST")
    restored = Database(empty_url)
    as_before(restored, before)
    restored.close()
    status, output, errors = run("restore", "--config", str(there), str(file))
    assert (status, output) == (1, "")
    assert "--force" in errors
    assert run("restore", "--config", str(there), str(tmp_path / "none"))[2].endswith("No such file or directory")
    if empty_url.startswith("sqlite:///"):
        assert Path(empty_url.removeprefix("sqlite:///")).stat().st_mode & 0o777 == 0o600


def test_a_deadlock_with_a_serving_api_begins_the_restore_again(
    used: Database, database_url: str, backup: Path
) -> None:
    """Both hold a table that the other one needs. PostgreSQL aborts the one that has waited longer: the restore."""
    if used.is_sqlite:
        pytest.skip("SQLite has one lock")
    before = content(used, but_for_restore=True)
    engine = create_engine(database_url)
    with ThreadPoolExecutor(1) as pool, engine.connect() as served, engine.connect() as looking:
        served.execute(text("LOCK TABLE audit IN ACCESS EXCLUSIVE MODE"))
        restoring = pool.submit(back, used, backup, force=True)
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'audit'::regclass")
        while not looking.execute(waiting).scalar():
            looking.rollback()
            assert not restoring.done()
        served.execute(text("LOCK TABLE tenants IN ACCESS EXCLUSIVE MODE"))
        served.rollback()
        looking.rollback()
        restoring.result()
    engine.dispose()
    as_before(used, before)
