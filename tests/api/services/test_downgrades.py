# SPDX-License-Identifier: Apache-2.0
"""Downgrades with the content of later releases. A step may drop what the older release derives or never had. It must
not drop what a promise or a bill depends on: then the step is refused and says what to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import inspect, text
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

from tests.api.services.tables import AT, FIRST, ID, add, columns_of, content, definitions, go, make_used, run, shape
from tests.api.templates import Templates

STEPS = [script.revision for script in schema.scripts().walk_revisions()][::-1]
COUNTED = dict.fromkeys(("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns"), 5)
HERE = {"host": "one", "gpu": "0000:00:10.0", "tenant": "acme"}
ACCOUNT = {"account_id": ID["b"], "account": "acme", "tenant_id": ID["b"]}

DROPPED: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        (
            "tokens",
            {
                "id": ID[name],
                "secret_hash": name * 64,
                "role": role,
                "tenant_id": tenant,
                "created_at": AT,
                "scopes": scopes,
            },
        )
        for name, role, tenant, scopes in (
            ("k", "admin", None, None),
            ("l", "viewer", None, None),
            ("m", "tenant-admin", ID["b"], None),
            ("n", "tenant", ID["b"], '["slices:read"]'),
        )
    ),
    ("host_labels", {"host_id": ID["c"], "key": "zone", "value": "a"}),
    ("gpu_labels", {"gpu_id": ID["h"], "key": "rack", "value": "7"}),
    (
        "host_reports",
        {
            "host_id": ID["c"],
            "boot_id": ID["a"],
            **dict.fromkeys(("agent_epoch", "seq", "desired_generation", "unknown_slices"), 3),
            "agent_version": "1",
            "desired_epoch": ID["a"],
            "refusals": "[]",
            "reported_at": AT,
            **dict.fromkeys(("lost_at", "spent_until", "other_heard_at", "second_boot_at"), AT),
            **dict.fromkeys(("other_agent_epoch", "other_seq"), 3),
            "other_boot_id": ID["b"],
        },
    ),
    (
        "operations",
        {
            "id": ID["o"],
            "kind": "host.drain",
            "target": "one",
            "target_id": ID["c"],
            "state": "failed",
            **dict.fromkeys(("request", "notes", "progress", "result", "error"), "{}"),
            "actor": "operator:x",
            "generation": 1,
            **dict.fromkeys(("created_at", "look_at", "deadline_at", "done_at", "expires_at"), AT),
        },
    ),
    ("liveness", {"id": 1, "since": AT, "at": AT}),
    (
        "meters",
        {
            "id": ID["p"],
            "host_id": ID["c"],
            "revision": 1,
            "complete_hour": 7,
            **dict.fromkeys(("told_at", "left_out_at"), AT),
        },
    ),
    ("meter_counts", {"meter_id": ID["p"], "hour": 7, "gpu": HERE["gpu"], "tenant": "acme", **COUNTED}),
    ("usage_books", {"id": 1, "closed_before": "2026-11-20 12:00:00+00:00", "kept_from": "2026-10-20 12:00:00+00:00"}),
)
CHANGED = (
    "UPDATE hosts SET state = 'cordoned', cordoned_for = 'draining'",
    "UPDATE gpus SET generation = 7, fair_ratio_permille = 2000, schedulable = false",
    "UPDATE gpus SET policy = 'equal_share', places = 4, reserve_limit_permille = 900",
    "UPDATE gpus SET reported_mem_bytes = 1, reported_reserve_limit_permille = 800",
    "UPDATE slice_observations SET executor_pause_s = 4, executor_memory_used_bytes = 5, executor_memory_bytes = 6",
    "UPDATE slice_observations SET enforced_by = 'firmware'",
    "UPDATE profiles SET executor_memory_max_bytes = 1, executor_tasks_max = 2, executor_cpu_max_permille = 3",
    "UPDATE profiles SET window_bytes = 33554432",
    "UPDATE gpus SET switch_cost_us = 130, uuid = 'GPU-1', serial = '11', pci_ids = '10de:2330'",
    "UPDATE slice_observations SET executor_state = 'failed', executor_restarts = 3, executor_reason = 'x'",
    "UPDATE slice_progress SET state = 'failed', reason = 'device', detail = 'gone'",
    "UPDATE quotas SET scaled_used = 1",
    "UPDATE tenants SET external_id = 'acme_prod'",
)
CREDENTIALS = {"0003": "n", "0002": "lm", "0001": "k"}
"""Credentials that the step deletes because the older release knows neither their role nor their scopes."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Content that prevents a step to `below`. `undo`: what an operator does about it; empty if nothing helps."""

    below: str
    why: str
    rows: tuple[tuple[str, dict[str, Any]], ...] = ()
    change: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()

    def use(self, database: Database) -> None:
        for table, row in self.rows:
            add(database, table, **row)
        run(database, *self.change)


def reserved(reservation: str, place: str, **ties: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """A reservation with a free place."""
    of = {"tenant_id": ID["b"], "profile_id": ID["g"], "places": 1, "expires_at": AT, "generation": 1, "created_at": AT}
    held = {"share_permille": 1, "mem_bytes": 1, "mdev_type": "m", "type_mem_bytes": 1, "fair_ratio_permille": 1000}
    return (
        ("reservations", {"id": ID[reservation], **of, **ties}),
        ("holds", {"id": ID[place], "reservation_id": ID[reservation], "gpu_id": ID["h"], **held}),
    )


def granted(name: str, **times: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    life = {"id": ID[name], "slice_id": ID[name], **ACCOUNT, **HERE, "share_permille": 500, "mem_bytes": 4}
    return (("grants", {**life, "started_at": AT, **times}),)


BILLED = "usage that is billed; restore a backup"
QUOTAS = "quotas limit profiles, mode or timeslices; set these"
BANDS = "profiles of the latency band or of one policy; delete"
TIES = {"affinity": "k", "affinity_level": "host", "anti_affinity": "m", "anti_affinity_level": "gpu"}

LOSSES = {
    "audit": Loss(
        below="0001",
        why="audit, which is kept for ever; restore a backup",
        rows=(
            (
                "audit",
                {
                    "id": 1,
                    "at": AT,
                    "action": "slice.claimed",
                    "actor": "tenant:x",
                    "role": "tenant",
                    "credential": ID["e"],
                    "source": "127.0.0.1",
                    "request_id": "r",
                    "tenant": "acme",
                    "object": "one",
                    "generation": 1,
                    "detail": "{}",
                },
            ),
        ),
    ),
    "over-commitment": Loss(
        below="0004",
        why="slices on over-committed GPUs; delete",
        change=("UPDATE slices SET mode = 'fair', fair_ratio_permille = 2000",),
        undo=("UPDATE slices SET mode = 'strict', fair_ratio_permille = 1000",),
    ),
    **{
        tie: Loss(
            below="0004",
            why="slices with affinity; delete",
            change=(f"UPDATE slices SET {tie} = 'k', {tie}_level = 'gpu'",),
            undo=(f"UPDATE slices SET {tie} = NULL, {tie}_level = NULL",),
        )
        for tie in ("affinity", "anti_affinity")
    },
    "ledger": Loss(
        below="0006", why=BILLED, rows=(("usage_ledger", {"hour": AT, "booked": AT, **ACCOUNT, **HERE, **COUNTED}),)
    ),
    "grant of a claim that was given up": Loss(
        below="0006", why=BILLED, change=(f"UPDATE grants SET deleted_at = '{AT}'",)
    ),
    "grant of a claim that is gone": Loss(below="0006", why=BILLED, rows=granted("q", deleted_at=AT, ended_at=AT)),
    "grant that no claim tells of": Loss(below="0006", why=BILLED, rows=granted("r")),
    "reservation": Loss(
        below="0007",
        why="reservations with places left; delete",
        rows=reserved("a", "d"),
        undo=("DELETE FROM holds",),
    ),
    "profiles of a quota": Loss(
        below="0008",
        why=QUOTAS,
        rows=(("quota_profiles", {"tenant_id": ID["b"], "profile_id": ID["g"]}),),
        change=("UPDATE quotas SET profiles_limited = true",),
        undo=("UPDATE quotas SET profiles_limited = false", "DELETE FROM quota_profiles"),
    ),
    **{
        f"{column} of a quota": Loss(
            below="0008",
            why=QUOTAS,
            change=(f"UPDATE quotas SET {column} = {value}",),
            undo=(f"UPDATE quotas SET {column} = {before}",),
        )
        for column, value, before in (
            ("mode", "'strict'", "NULL"),
            ("timeslice_min_us", "200", "100"),
            ("timeslice_max_us", "3000", "1000000"),
        )
    },
    "usage beside the ledger": Loss(
        below="0009",
        why="usage that the ledger does not have; restore a backup",
        rows=(("usage_unbooked", {"hour": AT, **HERE, "reason": "unattributed", **COUNTED}),),
    ),
    "latency band": Loss(
        below="0011",
        why=BANDS,
        rows=reserved("e", "f"),
        change=(
            "UPDATE profiles SET band = 'latency', reserve_period_us = 1000",
            "UPDATE slices SET band = 'latency', reserve_period_us = 1000, reserved_permille = 500",
            "UPDATE holds SET reserved_permille = 10",
            "UPDATE gpus SET reserve_limit_permille = 900, reserved_permille = 510",
        ),
        undo=(
            "DELETE FROM holds",
            "UPDATE gpus SET reserved_permille = 0",
            "UPDATE slices SET band = 'fair', reserve_period_us = NULL, reserved_permille = 0",
            "UPDATE profiles SET band = 'fair', reserve_period_us = NULL",
        ),
    ),
    "policy": Loss(
        below="0011",
        why=BANDS,
        change=("UPDATE profiles SET policy = 'fixed_share'",),
        undo=("UPDATE profiles SET policy = NULL",),
    ),
    "band of a quota": Loss(
        below="0011",
        why="quotas are limited to one band; remove that limit",
        change=("UPDATE quotas SET band = 'fair'",),
        undo=("UPDATE quotas SET band = NULL",),
    ),
    "claim for processes": Loss(
        below="0025",
        why="claims for processes; delete",
        change=("UPDATE slices SET workload = 'process'",),
        undo=("UPDATE slices SET workload = 'vm'",),
    ),
    "reservation with affinity": Loss(
        below="0012",
        why="reservations with affinity and places left; delete",
        rows=reserved("b", "g", **TIES),
        undo=("DELETE FROM holds",),
    ),
    "move": Loss(
        below="0026",
        why="slices that are moving to another host; wait",
        change=(f"UPDATE slices SET moving = true, moved_from = '{ID['d']}', moved_from_host_id = '{ID['c']}'",),
        undo=("UPDATE slices SET moving = false",),
    ),
}


@dataclass(frozen=True)
class Release:
    shape: dict[str, Any]
    columns: dict[str, list[str]]


@pytest.fixture(scope="module")
def noted() -> dict[str, dict[str, Release]]:
    """The shape of each release by engine, once it is known."""
    return {}


@pytest.fixture
def releases(used: Database, engine_name: str, noted: dict[str, dict[str, Release]]) -> dict[str, Release]:
    """The shape of each release, recorded during the upgrade."""
    if engine_name not in noted:
        found = {}
        for revision in STEPS:
            go(used, "upgrade", revision)
            found[revision] = Release(shape(used), columns_of(used))
        noted[engine_name] = found
    return noted[engine_name]


@pytest.fixture
def newest(templates: Templates, engine_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database of this release, in use since the first release; nothing prevents a downgrade."""
    with templates.copied(engine_name, "newest", make_newest, tmp_path_factory.mktemp("newest")) as url:
        database = Database(url)
        yield database
        database.close()


def make_newest(made: Database) -> None:
    make_used(made)
    schema.upgrade(made)
    for table, row in DROPPED:
        add(made, table, **row)
    run(made, *CHANGED)


def test_each_step_back_keeps_what_the_release_before_knows(releases: dict[str, Release], newest: Database) -> None:
    for revision in STEPS[-2::-1]:
        tables = releases[revision].columns
        expected = content(newest, tables)
        gone = {ID[name].replace("-", "") for name in CREDENTIALS.get(revision, "")}
        at = tables["tokens"].index("id")
        expected["tokens"] = [row for row in expected["tokens"] if str(row[at]).replace("-", "") not in gone]
        go(newest, "downgrade", revision)
        assert content(newest, tables) == expected
        assert shape(newest) == releases[revision].shape
    assert STEPS[0] == FIRST


def test_what_is_derived_is_there_again(newest: Database) -> None:
    derived = {"grants": [name for name in columns_of(newest)["grants"] if name != "id"], "quotas": ["scaled_used"]}
    run(newest, "UPDATE quotas SET share_limit = 0, share_used = 500, scaled_used = 500")
    before = content(newest, derived)
    go(newest, "downgrade", FIRST)
    schema.upgrade(newest)
    schema.require_current(newest)
    assert schema.differences(newest) == []
    assert content(newest, derived) == before
    assert content(newest, {"slice_progress": ["state"], "tokens": ["role"]}) == {
        "slice_progress": [("claimed",)],
        "tokens": [("host",), ("operator",), ("tenant",)],
    }


@pytest.mark.parametrize("name", LOSSES)
def test_no_step_back_over_what_the_release_before_would_get_wrong(newest: Database, name: str) -> None:
    """The whole downgrade is refused, including the steps above; once the content is gone, it works."""
    loss = LOSSES[name]
    loss.use(newest)
    tables = columns_of(newest)
    before = definitions(newest), content(newest, tables)
    with pytest.raises(RuntimeError, match=loss.why):
        go(newest, "downgrade", loss.below)
    assert (definitions(newest), content(newest, tables)) == before
    schema.require_current(newest)
    run(newest, *loss.undo)
    target = loss.below if loss.undo else STEPS[STEPS.index(loss.below) + 1]
    go(newest, "downgrade", target)
    assert schema.revision(newest) == target
    schema.upgrade(newest)
    schema.require_current(newest)


def test_a_slice_that_was_on_its_way_out_lets_nobody_back_at_once(used: Database) -> None:
    """Only the upgrade step knows when the slice was deleted and what was billed for its grant."""
    go(used, "upgrade", "0006")
    run(used, "UPDATE slices SET state = 'releasing', tombstone_generation = 3")
    go(used, "upgrade", "0007")
    with pytest.raises(RuntimeError, match=BILLED):
        go(used, "downgrade", "0006")
    assert schema.revision(used) == "0007"
    assert content(used, {"slices": ["state"]})["slices"] == [("releasing",)]


def test_all_that_later_releases_keep_was_there(releases: dict[str, Release], newest: Database) -> None:
    """Every column that a step adds has a non-default value here, in the content that is dropped or refused."""
    for loss in LOSSES.values():
        loss.use(newest)
    found = inspect(newest.engine)
    later = [
        (table, column["name"], column["default"])
        for table in found.get_table_names()
        for column in found.get_columns(table)
        if column["name"] not in releases[FIRST].columns.get(table, ())
    ]
    with newest.engine.connect() as connection:
        for table, name, default in later:
            is_set = f"{name} IS NOT NULL"
            if default is not None and "nextval" not in default:
                is_set += f" AND {name} <> {default}"
            assert connection.scalar(text(f"SELECT 1 FROM {table} WHERE {is_set} LIMIT 1")), f"{table}.{name}"
