# SPDX-License-Identifier: Apache-2.0
"""Progress of slices, why a host is cordoned, since when it is silent, and operations."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Do not use a batch: on SQLite it rebuilds the table, and dropping the old table deletes the rows that refer to it.
    op.execute(
        "ALTER TABLE hosts ADD COLUMN cordoned_for VARCHAR(16) CONSTRAINT ck_hosts_cordoned_for"
        " CHECK (cordoned_for IS NULL OR (cordoned_for IN ('draining', 'maintenance') AND state = 'cordoned'))"
    )
    op.add_column("host_reports", sa.Column("lost_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "slice_progress",
        sa.Column("slice_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("timed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.String(length=200), nullable=False),
        sa.CheckConstraint(
            "state IN ('claimed', 'prepared', 'attached', 'releasing', 'failed', 'orphaned', 'lost')",
            name=op.f("ck_slice_progress_state"),
        ),
        sa.CheckConstraint(
            "NOT timed OR state IN ('claimed', 'prepared', 'releasing')", name=op.f("ck_slice_progress_timed")
        ),
        sa.CheckConstraint("(reason <> '') = (state IN ('failed', 'orphaned'))", name=op.f("ck_slice_progress_reason")),
        sa.ForeignKeyConstraint(
            ["slice_id"], ["slices.id"], name=op.f("fk_slice_progress_slice_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("slice_id", name=op.f("pk_slice_progress")),
    )
    op.create_index(
        "ix_slice_progress_timed",
        "slice_progress",
        ["state", "since"],
        postgresql_where=sa.text("timed"),
        sqlite_where=sa.text("timed"),
    )
    # A VM that has run and stopped before this step must not count as never started.
    op.execute(
        "INSERT INTO slice_progress (slice_id, state, since, timed, reason, detail)"
        " SELECT id, state, created_at, state = 'releasing', '', '' FROM slices"
    )
    op.create_table(
        "operations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column("target_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("look_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_operations_state")
        ),
        sa.CheckConstraint("(state = 'running') = (done_at IS NULL)", name=op.f("ck_operations_done")),
        sa.CheckConstraint("(done_at IS NULL) = (expires_at IS NULL)", name=op.f("ck_operations_expires")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index(op.f("ix_operations_target"), "operations", ["target"], unique=False)
    op.create_index(op.f("ix_operations_expires_at"), "operations", ["expires_at"], unique=False)
    op.create_index(
        "uq_operations_running",
        "operations",
        ["kind", "target_id"],
        unique=True,
        postgresql_where=sa.text("done_at IS NULL"),
        sqlite_where=sa.text("done_at IS NULL"),
    )
    op.create_table(
        "liveness",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_liveness_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_liveness")),
    )


def downgrade() -> None:
    """Drained hosts and hosts in maintenance stay cordoned. Operations in progress are forgotten."""
    op.drop_table("liveness")
    op.drop_table("operations")
    op.drop_table("slice_progress")
    op.drop_column("host_reports", "lost_at")
    op.drop_column("hosts", "cordoned_for")
