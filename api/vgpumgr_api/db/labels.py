# SPDX-License-Identifier: Apache-2.0
"""The tables of labels, which operators attach to hosts and GPUs and claims select by."""

from uuid import UUID

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base


class HostLabel(Base):
    """A label of a host. It also applies to each of the host's GPUs without a label of the same key."""

    __tablename__ = "host_labels"

    host_id: Mapped[UUID] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(63))


class GpuLabel(Base):
    """A label of one GPU."""

    __tablename__ = "gpu_labels"

    gpu_id: Mapped[UUID] = mapped_column(ForeignKey("gpus.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(String(63))
