# SPDX-License-Identifier: Apache-2.0
"""The tables of what hosts reported last. Nothing here ends a claim, and losing these tables loses no claim."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, ForeignKey, String, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base


class HostReport(Base):
    """One row per host, created when it enrols and locked while a report is processed.

    (`boot_id`, `agent_epoch`, `seq`) orders reports; `seq` is -1 before the first report. `unknown_slices`: how many
    slices the host has, or may start, that are not claims on it. These slices use capacity that is not counted, so the
    host takes no claims while there are any. `lost_at`: when the host was found silent for too long, until it reports
    again. `spent_until`: see `events.allowance`. `other_*`: the last report of another boot than the recorded one.
    `second_boot_at`: since when both boots have been live at the same time; see `fleet.boots`.
    """

    __tablename__ = "host_reports"

    host_id: Mapped[UUID] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    boot_id: Mapped[UUID | None]
    agent_epoch: Mapped[int]
    seq: Mapped[int]
    agent_version: Mapped[str] = mapped_column(String(64))
    desired_epoch: Mapped[UUID | None]
    desired_generation: Mapped[int]
    unknown_slices: Mapped[int]
    refusals: Mapped[list[Any]] = mapped_column(JSON)
    reported_at: Mapped[datetime | None]
    lost_at: Mapped[datetime | None]
    spent_until: Mapped[datetime | None]
    other_boot_id: Mapped[UUID | None]
    other_agent_epoch: Mapped[int | None]
    other_seq: Mapped[int | None]
    other_heard_at: Mapped[datetime | None]
    second_boot_at: Mapped[datetime | None]


class SliceObservation(Base):
    """A slice's device, or its absence, as the host reported it."""

    __tablename__ = "slice_observations"

    slice_id: Mapped[UUID] = mapped_column(ForeignKey("slices.id", ondelete="CASCADE"), primary_key=True)
    generation: Mapped[int]
    present: Mapped[bool]
    open: Mapped[bool]
    vm_uuid: Mapped[UUID | None]
    applied_permille: Mapped[int | None]
    run_ns: Mapped[int]
    items: Mapped[int]
    error: Mapped[str] = mapped_column(String(200))
    executor_state: Mapped[str] = mapped_column(String(16), server_default="absent")
    executor_restarts: Mapped[int] = mapped_column(server_default="0")
    executor_reason: Mapped[str] = mapped_column(String(200), server_default=text("''"))
    executor_pause_s: Mapped[int] = mapped_column(server_default="0")
    executor_memory_used_bytes: Mapped[int] = mapped_column(server_default="0")
    executor_memory_bytes: Mapped[int] = mapped_column(server_default="0")
    enforced_by: Mapped[str] = mapped_column(String(32), server_default=text("''"))
    reported_at: Mapped[datetime]


class GroupObservation(Base):
    """Counters of a tenant's group on one GPU."""

    __tablename__ = "group_observations"

    gpu_id: Mapped[UUID] = mapped_column(ForeignKey("gpus.id", ondelete="CASCADE"), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True, index=True)
    weight: Mapped[int]
    timeslice_us: Mapped[int]
    cap_us: Mapped[int]
    cap_period_us: Mapped[int]
    run_ns: Mapped[int]
    runs: Mapped[int]
    longest_run_ns: Mapped[int]
    throttled_ns: Mapped[int]
    switches: Mapped[int]
    wall_ns: Mapped[int]
    idle_ns: Mapped[int]
    reported_at: Mapped[datetime]
