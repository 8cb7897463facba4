# SPDX-License-Identifier: Apache-2.0
"""Credentials. Only a hash of each is kept; the secret is shown once."""

from datetime import timedelta
from uuid import UUID, uuid4

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Token, TokenCreate, TokenCreated, TokenRole
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import credentials, events
from vgpumgr_api.services.actors import Actor, hash_of, new_secret, require_admin, require_operator
from vgpumgr_api.services.lookup import remove, tenant_named
from vgpumgr_api.services.paging import PageRequest, fetch


def list_tokens(session: Session, actor: Actor, page: PageRequest) -> Page[Token]:
    """Returns all credentials without their secrets, also expired ones, by id. Operators only."""
    require_operator(actor)
    rows, token = fetch(
        session,
        select(records.Token, func.coalesce(models.Tenant.name, models.Host.name))
        .outerjoin(models.Tenant, models.Tenant.id == records.Token.tenant_id)
        .outerjoin(models.Host, models.Host.id == records.Token.host_id),
        kind="tokens",
        keys=[records.Token.id],
        page=page,
    )
    return Page(items=[_token(row[0], row[1]) for row in rows], next_page_token=token)


def create_token(session: Session, actor: Actor, request: TokenCreate) -> TokenCreated:
    """Makes a credential. Operators only, and for admins' only admins."""
    require_operator(actor)
    if request.role is TokenRole.ADMIN:
        require_admin(actor)
    tenant = None
    match request.role:
        case TokenRole.HOST:
            raise _invalid("role", "a host gets its token by enrolling; create or re-enrol the host")
        case TokenRole.ADMIN | TokenRole.OPERATOR if request.subject is not None:
            raise _invalid("subject", f"the token of an {request.role} has no subject; leave it out")
        case TokenRole.TENANT | TokenRole.TENANT_ADMIN if request.subject is None:
            raise _invalid("subject", "a tenant's token needs the tenant's name as its subject")
    if request.subject is not None:
        tenant = tenant_named(session, request.subject)
    secret = new_secret()
    token = records.Token(
        id=uuid4(),
        secret_hash=hash_of(secret),
        role=request.role.value,
        tenant_id=tenant.id if tenant else None,
        created_at=now(session),
        expires_at=now(session) + timedelta(seconds=request.expires_in_s) if request.expires_in_s else None,
    )
    session.add(token)
    events.record(
        session,
        actor,
        "token.created",
        token.id,
        detail={"role": request.role.value, "subject": request.subject},
    )
    session.flush()
    return TokenCreated(**_token(token, request.subject).model_dump(), secret=secret)


def delete_token(session: Session, actor: Actor, token_id: UUID) -> None:
    """Revokes a credential at once. Operators only, and for admins' only admins."""
    require_operator(actor)
    if session.scalar(select(records.Token.role).where(records.Token.id == token_id)) == TokenRole.ADMIN.value:
        require_admin(actor)
    of_host = session.execute(
        select(models.Host.id, models.Host.name, records.Token.secret_hash)
        .join(records.Token, records.Token.host_id == models.Host.id)
        .where(records.Token.id == token_id)
        .with_for_update(of=models.Host)
    ).one_or_none()
    remove(session, records.Token, token_id, kind="token", name=token_id)
    if of_host is not None:
        credentials.remember(session, of_host.secret_hash, of_host.id, of_host.name)
    events.record(session, actor, "token.deleted", token_id)


def _invalid(field: str, detail: str) -> Refusal:
    return Refusal(
        Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{field}"),)
    )


def _token(token: records.Token, subject: str | None) -> Token:
    return Token(
        id=token.id,
        role=TokenRole(token.role),
        subject=subject,
        created_at=token.created_at,
        expires_at=token.expires_at,
    )
