# SPDX-License-Identifier: Apache-2.0
"""Each migration up and down on the typical content of a release: no content is lost or changed."""

import pytest
from sqlalchemy import text
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

from tests.api.services.tables import FIRST, ROWS, columns_of, content, go, shape


def test_up_and_down_again_keep_what_was_there(used: Database) -> None:
    names = columns_of(used)
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
    """A slice that stopped before the upgrade does not count as never started; a deleted slice is still waited for."""
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
