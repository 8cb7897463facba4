# SPDX-License-Identifier: Apache-2.0
"""The tables of what goes on by itself: how far slices have come, operations, and since when the API has been alive.

Losing a row of `slice_progress` loses no claim: what has none is as its claim says.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base


class SliceProgress(Base):
    """How far a slice has come, by its claim, its host's word and the clock. Locked after its slice.

    `since`: when it came there. `timed`: whether it may stay so for a limited time only. `reason`, `detail`: why it
    failed or is orphaned.
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
    """Work that outlives a request. Locked after what it is about; of one kind one at a time on one target.

    `notes`: what its kind keeps for itself. `look_at`: when to look how far it is. The target is not referenced, so
    that an operation outlives it.
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
    """One row. Some replica was alive at `at`, and since `since` without a gap that hosts would notice."""

    __tablename__ = "liveness"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    since: Mapped[datetime]
    at: Mapped[datetime]
