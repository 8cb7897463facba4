# SPDX-License-Identifier: Apache-2.0
"""The tables of slices' progress, of operations, and of the time since when the API has been alive.

Losing a row of `slice_progress` loses no claim: a slice without a row is in the state of its claim.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base


class SliceProgress(Base):
    """The progress of a slice, determined by its claim, its host's reports and deadlines. Locked after its slice.

    `since`: when it reached this state. `timed`: whether a deadline applies. `reason`, `detail`: why it failed or is
    orphaned.
    """

    __tablename__ = "slice_progress"
    __table_args__ = (
        CheckConstraint(
            "state IN ('claimed', 'prepared', 'attached', 'releasing', 'failed', 'orphaned', 'lost')", name="state"
        ),
        CheckConstraint("NOT timed OR state IN ('claimed', 'prepared', 'releasing')", name="timed"),
        CheckConstraint("(reason <> '') = (state IN ('failed', 'orphaned'))", name="reason"),
        Index("ix_slice_progress_timed", "state", "since", postgresql_where=text("timed"), sqlite_where=text("timed")),
    )

    slice_id: Mapped[UUID] = mapped_column(ForeignKey("slices.id", ondelete="CASCADE"), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    since: Mapped[datetime]
    timed: Mapped[bool]
    reason: Mapped[str] = mapped_column(String(32))
    detail: Mapped[str] = mapped_column(String(200))


class Operation(Base):
    """Work that outlives a request. Locked after its target. A target has at most one running operation of each kind.

    `notes`: private data of its kind. `look_at`: when to check its progress next. `target_id` is no foreign key, so
    that an operation outlives its target.
    """

    __tablename__ = "operations"
    __table_args__ = (
        CheckConstraint("state IN ('running', 'succeeded', 'failed', 'cancelled')", name="state"),
        CheckConstraint("(state = 'running') = (done_at IS NULL)", name="done"),
        CheckConstraint("(done_at IS NULL) = (expires_at IS NULL)", name="expires"),
        Index(
            "uq_operations_running",
            "kind",
            "target_id",
            unique=True,
            postgresql_where=text("done_at IS NULL"),
            sqlite_where=text("done_at IS NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(64))
    target: Mapped[str] = mapped_column(String(128), index=True)
    target_id: Mapped[UUID]
    state: Mapped[str] = mapped_column(String(16))
    request: Mapped[dict[str, Any]] = mapped_column(JSON)
    notes: Mapped[dict[str, Any]] = mapped_column(JSON)
    progress: Mapped[dict[str, Any]] = mapped_column(JSON)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    actor: Mapped[str] = mapped_column(String(128))
    generation: Mapped[int]
    created_at: Mapped[datetime]
    look_at: Mapped[datetime]
    deadline_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None] = mapped_column(index=True)


class Liveness(Base):
    """One row: some replica was alive at `at`, and there was no gap since `since` that hosts would notice."""

    __tablename__ = "liveness"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime]
    at: Mapped[datetime]
