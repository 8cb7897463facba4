# SPDX-License-Identifier: Apache-2.0
"""Each step up and down with what a release in use has in its tables: nothing of it is lost or changed."""

from collections.abc import Iterator
from typing import Any

import pytest
from alembic import command
from sqlalchemy import MetaData, inspect, text
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

FIRST = "0001"
ID = {name: f"00000000-0000-4000-8000-00000000000{number}" for number, name in enumerate("abcdefghij")}
AT = "2026-11-21 12:00:00+00:00"
ROWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("installation", {"id": 1, "epoch": ID["a"], "created_at": AT}),
    ("tenants", {"id": ID["b"], "name": "acme", "account_id": None, "generation": 1, "created_at": AT}),
    (
        "hosts",
        {
            "id": ID["c"],
            "name": "one",
            "state": "ready",
            "enroll_hash": "e" * 64,
            "enroll_expires_at": AT,
            "enrolled_at": AT,
            "epoch_confirmed": True,
            "fenced_at": None,
            "desired_generation": 1,
            "generation": 2,
            "created_at": AT,
        },
    ),
    *(
        (
            "tokens",
            {
                "id": ID[name],
                "secret_hash": name * 64,
                "role": role,
                "tenant_id": ID["b"] if role == "tenant" else None,
                "host_id": ID["c"] if role == "host" else None,
                "created_at": AT,
                "expires_at": AT,
            },
        )
        for name, role in (("d", "operator"), ("e", "tenant"), ("f", "host"))
    ),
    (
        "quotas",
        {
            "tenant_id": ID["b"],
            **dict.fromkeys(("share_limit", "mem_limit", "slices_limit"), 9000),
            **dict.fromkeys(("share_used", "mem_used", "slices_used"), 1),
            "timeslice_us": 2000,
            "generation": 1,
        },
    ),
    (
        "profiles",
        {
            "id": ID["g"],
            "name": "sliver",
            "share_permille": 500,
            "mem_bytes": 4,
            "mode": "strict",
            "generation": 1,
            "created_at": AT,
        },
    ),
    (
        "gpus",
        {
            "id": ID["h"],
            "host_id": ID["c"],
            "address": "0000:00:10.0",
            "engine": "soft",
            "backend": "kmod",
            "mem_bytes": 64,
            "timeslice_min_us": 100,
            "max_chunk_us": 500,
            "present": True,
            "share_used": 500,
            "mem_used": 8,
        },
    ),
    ("gpu_types", {"gpu_id": ID["h"], "mdev_type": "vgpumgr-8", "mem_bytes": 8}),
    (
        "slices",
        {
            "id": ID["i"],
            "tenant_id": ID["b"],
            "profile_id": ID["g"],
            "gpu_id": ID["h"],
            "vm_uuid": None,
            "share_permille": 500,
            "mem_bytes": 4,
            "mode": "strict",
            "mdev_type": "vgpumgr-8",
            "type_mem_bytes": 8,
            "state": "claimed",
            "tombstone_generation": None,
            "generation": 1,
            "created_at": AT,
        },
    ),
    (
        "slice_observations",
        {
            "slice_id": ID["i"],
            "generation": 1,
            "present": True,
            "open": True,
            "vm_uuid": ID["j"],
            "applied_permille": 500,
            "run_ns": 1,
            "items": 1,
            "error": "",
            "reported_at": AT,
        },
    ),
    ("former_secrets", {"secret_hash": "a" * 64, "host_id": ID["c"], "host": "one", "fenced": True}),
    (
        "events",
        {
            "id": 7,
            "seq": 3,
            "at": AT,
            "kind": "host.created",
            "actor": "operator:x",
            "request_id": "r",
            "tenant_id": None,
            "account_id": None,
            "tenant": None,
            "object": "one",
            "detail": "{}",
        },
    ),
)


@pytest.fixture
def used(empty_url: str) -> Iterator[Database]:
    """A database of the first release, in use."""
    database = Database(empty_url)
    go(database, "upgrade", FIRST)
    with database.engine.begin() as connection:
        for table, row in ROWS:
            # As SQLAlchemy stores a UUID there.
            if database.is_sqlite:
                row = {name: value.replace("-", "") if value in ID.values() else value for name, value in row.items()}
            columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)
    yield database
    database.close()


def go(database: Database, direction: str, revision: str) -> None:
    with database.engine.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        getattr(command, direction)(config, revision)


def content(database: Database, tables: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    with database.engine.connect() as connection:
        return {
            table: [
                tuple(row) for row in connection.execute(text(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1"))
            ]
            for table, columns in tables.items()
        }


def shape(database: Database) -> dict[str, Any]:
    """Tables with columns, indexes and constraints, as the database describes them."""
    found = inspect(database.engine)
    reflected = MetaData()
    reflected.reflect(database.engine)
    return {
        table.name: (
            {column.name: (str(column.type), column.nullable) for column in table.columns},
            sorted(str(each["name"]) for each in found.get_indexes(table.name)),
            sorted((str(each["name"]), each["sqltext"]) for each in found.get_check_constraints(table.name)),
            sorted(str(each["name"]) for each in found.get_unique_constraints(table.name)),
            sorted((str(each["name"]), str(each["options"])) for each in found.get_foreign_keys(table.name)),
        )
        for table in reflected.sorted_tables
    }


def test_up_and_down_again_keep_what_was_there(used: Database) -> None:
    names = {
        table: [column["name"] for column in inspect(used.engine).get_columns(table)]
        for table in inspect(used.engine).get_table_names()
        if table != "alembic_version"
    }
    first, was = shape(used), content(used, names)
    assert all(was[table] for table, _ in ROWS)
    for _ in range(2):
        schema.upgrade(used)
        schema.require_current(used)
        assert schema.differences(used) == []
        assert content(used, names) == was
        go(used, "downgrade", FIRST)
        assert shape(used) == first
        assert content(used, names) == was


def test_a_step_that_fails_leaves_the_one_before(used: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape(used)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("alembic.op.create_index", fail)
    with pytest.raises(RuntimeError, match="full"):
        schema.upgrade(used)
    monkeypatch.undo()
    assert shape(used) == before
    assert schema.revision(used) == FIRST
    schema.upgrade(used)


@pytest.mark.parametrize(("state", "timed"), [("claimed", False), ("releasing", True), ("lost", False)])
def test_slices_of_before_are_watched_from_where_they_were(used: Database, state: str, timed: bool) -> None:
    """What stopped before the upgrade is not taken for what has never started; what was deleted is still waited for."""
    if state != "claimed":
        with used.engine.begin() as connection:
            connection.execute(text(f"UPDATE slices SET state = '{state}', tombstone_generation = 1"))
    schema.upgrade(used)
    with used.engine.connect() as connection:
        found = connection.execute(text("SELECT state, timed, reason FROM slice_progress")).all()
    assert [tuple(row) for row in found] == [(state, timed, "")]


def test_claims_that_there_are_are_billed_from_when_they_were_made(used: Database) -> None:
    schema.upgrade(used)
    claimed, granted = content(
        used,
        {
            "slices": ["id", "created_at", "tenant_id", "share_permille", "mem_bytes"],
            "grants": ["slice_id", "started_at", "tenant_id", "share_permille", "mem_bytes"],
        },
    ).values()
    assert granted == claimed
    assert len(granted) == 1
    [(account, tenant, host, gpu, deleted, ended)] = content(
        used, {"grants": ["account", "tenant", "host", "gpu", "deleted_at", "ended_at"]}
    )["grants"]
    assert (account, tenant, host, deleted, ended) == ("acme", "acme", "one", None, None)
    assert gpu


def add(database: Database, table: str, **row: Any) -> None:
    if database.is_sqlite:
        row = {name: value.replace("-", "") if value in ID.values() else value for name, value in row.items()}
    with database.engine.begin() as connection:
        columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


def over_commit(database: Database) -> str:
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE slices SET mode = 'fair', fair_ratio_permille = 2000"))
    return "UPDATE slices SET fair_ratio_permille = 1000"


def reserve(database: Database) -> str:
    of = {"tenant_id": ID["b"], "profile_id": ID["g"]}
    add(database, "reservations", id=ID["a"], **of, places=1, expires_at=AT, generation=1, created_at=AT)
    held = {"share_permille": 1, "mem_bytes": 1, "mdev_type": "m", "type_mem_bytes": 1, "fair_ratio_permille": 1000}
    add(database, "holds", id=ID["d"], reservation_id=ID["a"], gpu_id=ID["h"], **held)
    return "DELETE FROM holds"


@pytest.mark.parametrize(
    ("use", "why", "below"),
    [(over_commit, "slices on over-committed GPUs", "0004"), (reserve, "reservations with places left", "0007")],
)
def test_no_step_back_over_what_the_release_before_would_get_wrong(
    used: Database, use: Any, why: str, below: str
) -> None:
    """Refused whole, also the steps above it; and possible once that is gone."""
    schema.upgrade(used)
    undo = use(used)
    names = {
        table: [column["name"] for column in inspect(used.engine).get_columns(table)]
        for table in inspect(used.engine).get_table_names()
        if table != "alembic_version"
    }
    before, held = shape(used), content(used, names)
    for target in (below, FIRST):
        with pytest.raises(RuntimeError, match=why):
            go(used, "downgrade", target)
        assert (shape(used), content(used, names)) == (before, held)
        assert schema.differences(used) == []
        schema.require_current(used)
    with used.engine.begin() as connection:
        connection.execute(text(undo))
    go(used, "downgrade", below)
    assert schema.revision(used) == below
    schema.upgrade(used)
    schema.require_current(used)
