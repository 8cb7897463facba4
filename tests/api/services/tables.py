# SPDX-License-Identifier: Apache-2.0
"""Typical content of a release's tables, and the tables as migrations leave them."""

from typing import Any

from sqlalchemy import inspect, text
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

FIRST = "0001"
ID = {name: f"00000000-0000-4000-8000-{number:012}" for number, name in enumerate("abcdefghijklmnopqr")}
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


def add(database: Database, table: str, **row: Any) -> None:
    """Inserts a row, with UUIDs in the form in which SQLAlchemy stores them there."""
    if database.is_sqlite:
        row = {name: value.replace("-", "") if value in ID.values() else value for name, value in row.items()}
    with database.engine.begin() as connection:
        columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), row)


def run(database: Database, *statements: str) -> None:
    with database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def go(database: Database, direction: str, revision: str) -> None:
    """Runs alembic's `direction`, "upgrade" or "downgrade"."""
    with database.engine.begin() as connection:
        schema.run_steps(connection, lambda scripts, at: getattr(scripts, f"_{direction}_revs")(revision, at))


def make_old(made: Database) -> None:
    """Makes the tables of the first release."""
    with made.engine.begin() as connection:
        schema.upgrade_to(connection, FIRST)


def make_used(made: Database) -> None:
    """Makes the tables of the first release and fills them."""
    make_old(made)
    for table, row in ROWS:
        add(made, table, **row)


def columns_of(database: Database) -> dict[str, list[str]]:
    found = inspect(database.engine).get_multi_columns()
    return {
        table: [column["name"] for column in columns]
        for (_, table), columns in found.items()
        if table != "alembic_version"
    }


def content(database: Database, tables: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    with database.engine.connect() as connection:
        return {
            table: [
                tuple(row) for row in connection.execute(text(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1"))
            ]
            for table, columns in tables.items()
        }


DEFINITIONS = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master",
    "postgresql": """
        SELECT 'column', attrelid::regclass::text || '.' || attname,
            format_type(atttypid, atttypmod) || attnotnull || attnum || coalesce(pg_get_expr(adbin, adrelid), '')
        FROM pg_attribute LEFT JOIN pg_attrdef ON (adrelid, adnum) = (attrelid, attnum)
        WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
        UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
        UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT 'function', oid::regprocedure::text, prosrc
            FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    """,
}


def definitions(database: Database) -> set[tuple[str, ...]]:
    """Returns all definitions in the database's own words. They are equal only if nothing was altered, not even back
    again.
    """
    with database.engine.connect() as connection:
        return {tuple(row) for row in connection.execute(text(DEFINITIONS[connection.dialect.name]))}


def shape(database: Database) -> dict[str, Any]:
    """Returns tables with columns, indexes and constraints, as the database describes them."""
    found = inspect(database.engine)
    indexes, checks, uniques, keys = (
        about_all()
        for about_all in (
            found.get_multi_indexes,
            found.get_multi_check_constraints,
            found.get_multi_unique_constraints,
            found.get_multi_foreign_keys,
        )
    )
    return {
        table[1]: (
            {column["name"]: (str(column["type"]), column["nullable"]) for column in columns},
            sorted(str(each["name"]) for each in indexes[table]),
            sorted((str(each["name"]), each["sqltext"]) for each in checks[table]),
            sorted(str(each["name"]) for each in uniques[table]),
            sorted((str(each["name"]), str(each["options"])) for each in keys[table]),
        )
        for table, columns in found.get_multi_columns().items()
    }
