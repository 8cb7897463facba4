# SPDX-License-Identifier: Apache-2.0
"""The tables beside the resources: credentials, events, the audit, and answers kept for repeated requests."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base
from vgpumgr_api.db.types import RowNumber


class Token(Base):
    """A credential. `secret_hash` is the SHA-256 of the secret, which is random and needs no salt.

    `scopes`: the part of its role's permissions that it has; None: all of them.
    """

    __tablename__ = "tokens"
    __table_args__ = (
        CheckConstraint(
            "(role IN ('admin', 'operator') AND tenant_id IS NULL AND host_id IS NULL)"
            " OR (role IN ('tenant', 'tenant-admin') AND tenant_id IS NOT NULL AND host_id IS NULL)"
            " OR (role = 'viewer' AND host_id IS NULL)"
            " OR (role = 'host' AND tenant_id IS NULL AND host_id IS NOT NULL)",
            name="subject",
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16))
    tenant_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    host_id: Mapped[UUID | None] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    scopes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))


class FormerSecret(Base):
    """A former credential of a host, kept to explain why it is void. `fenced`: the host was fenced then or later.

    The row outlives a fenced host, because its machine may come back.
    """

    __tablename__ = "former_secrets"

    secret_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    host_id: Mapped[UUID] = mapped_column(index=True)
    host: Mapped[str] = mapped_column(String(63))
    fenced: Mapped[bool]


class IdempotencyKey(Base):
    """A request and its answer. `scope`: the actor that made it. `answer` is set before the commit."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    answer: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(index=True)


class Event(Base):
    """An event, written in the transaction that caused it. The first reader after the commit assigns `seq`.

    Tenants are not foreign keys, so that their events outlive them.
    """

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_unnumbered", "id", postgresql_where=text("seq IS NULL"), sqlite_where=text("seq IS NULL")),
        Index("ix_events_tenant_id_seq", "tenant_id", "seq"),
        Index("ix_events_account_id_seq", "account_id", "seq"),
    )

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    seq: Mapped[int | None] = mapped_column(unique=True)
    at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(String(128))
    request_id: Mapped[str] = mapped_column(String(64))
    tenant_id: Mapped[UUID | None]
    account_id: Mapped[UUID | None]
    tenant: Mapped[str | None] = mapped_column(String(63))
    object: Mapped[str] = mapped_column(String(128))
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)


class AuditEntry(Base):
    """An entry of the audit, written in the transaction of the action. Triggers reject changes and deletions of rows.

    `credential`: the id of the token that was shown. `source`: the address that the request came from. `generation`:
    the object's generation after the action. The entry contains names, not foreign keys, so that it outlives its
    object.
    """

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_object_id", "object", "id"), Index("ix_audit_request_id", "request_id"))

    id: Mapped[int] = mapped_column(RowNumber, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    action: Mapped[str] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    credential: Mapped[UUID | None]
    source: Mapped[str] = mapped_column(String(64))
    request_id: Mapped[str] = mapped_column(String(64))
    tenant: Mapped[str | None] = mapped_column(String(63))
    object: Mapped[str] = mapped_column(String(128))
    generation: Mapped[int | None]
    detail: Mapped[dict[str, Any]] = mapped_column(JSON)
