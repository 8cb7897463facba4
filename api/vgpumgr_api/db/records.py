# SPDX-License-Identifier: Apache-2.0
"""The tables beside the resources: credentials, what happened, who did it, and answers kept for repeated requests."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Index, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base
from vgpumgr_api.db.types import RowNumber


class Token(Base):
    """A credential; `secret_hash` is the SHA-256 of the secret, which is random and needs no salt.

    `scopes`: what it is good for, of what its role may do; None: all of that.
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
    """A credential that a host had, known so as to say why it is void: the host was `fenced` while it had it, or after.

    Outlives a host that was fenced, since its machine may come back.
    """

    __tablename__ = "former_secrets"

    secret_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    host_id: Mapped[UUID] = mapped_column(index=True)
    host: Mapped[str] = mapped_column(String(63))
    fenced: Mapped[bool]


class IdempotencyKey(Base):
    """A request that was made, and its answer. `scope`: who made it. `answer` is set before the commit."""

    __tablename__ = "idempotency_keys"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    answer: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(index=True)


class Event(Base):
    """Something that happened, written with it. `seq` is given when the first reader after the commit comes.

    Tenants are not referenced, so that what happened to one outlives it.
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
    """Who did what, written in the transaction that did it. Triggers of the database refuse to change or delete a row.

    `credential`: the id of the token that was shown. `source`: the address that the request came from. `generation`:
    what the object got by it. Names, not references, so that an entry outlives what it is about.
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
