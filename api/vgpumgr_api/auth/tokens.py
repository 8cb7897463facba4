# SPDX-License-Identifier: Apache-2.0
"""Credentials. The database keeps only a hash of each secret, which is shown once."""

from datetime import datetime, timedelta
from uuid import UUID, uuid4

from sqlalchemy import delete, false, func, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Token, TokenCreate, TokenCreated, TokenRole
from vgpumgr_api.actors import (
    Actor,
    hash_of,
    new_secret,
    reachable_tenants,
    require_admin,
    require_operator,
    require_tenant,
    unknown,
)
from vgpumgr_api.auth import credentials
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.lookup import named_by, remove, tenant_named
from vgpumgr_api.resources.paging import PageRequest, fetch

DELEGATED_MAX_S = 366 * 86400
TOKENS_MAX = 1000
"""The maximum number of valid tokens of one tenant, regardless of who creates them."""

KEPT_AFTER = timedelta(days=30)
"""How long an expired token stays listed. During this time its bearer gets AUTH_EXPIRED, later AUTH_INVALID."""

FORGOTTEN_AT_ONCE = 500

_DELEGABLE = (TokenRole.TENANT, TokenRole.VIEWER)


def list_tokens(
    session: Session,
    actor: Actor,
    page: PageRequest,
    *,
    role: TokenRole | None = None,
    subject: str | None = None,
    expired: bool | None = None,
) -> Page[Token]:
    """Returns credentials by id, without secrets, including expired ones. A tenant's admin sees those of its tenant."""
    _require_keeper(actor)
    named = func.coalesce(models.Tenant.name, models.Host.name)
    statement = (
        select(records.Token, named)
        .outerjoin(models.Tenant, models.Tenant.id == records.Token.tenant_id)
        .outerjoin(models.Host, models.Host.id == records.Token.host_id)
        .where(reachable_tenants(actor))
    )
    if role is not None:
        statement = statement.where(records.Token.role == role.value)
    if subject is not None:
        statement = statement.where(named == subject)
    if expired is not None:
        over = func.coalesce(records.Token.expires_at <= now(session), false())
        statement = statement.where(over if expired else ~over)
    rows, token = fetch(session, statement, kind="tokens", keys=[records.Token.id], page=page)
    return Page(items=[_token(row[0], row[1]) for row in rows], next_page_token=token)


def create_token(session: Session, actor: Actor, request: TokenCreate) -> TokenCreated:
    """Creates a credential. For operators; only admins create admins' tokens.

    A tenant's admin creates tokens of some roles for its tenant. An actor with scopes cannot pass on more than its own
    scopes. If the actor's token expires, the new token expires no later.
    """
    _require_keeper(actor)
    if request.role is TokenRole.ADMIN:
        require_admin(actor)
    match request.role:
        case TokenRole.HOST:
            raise _invalid("role", "a host gets its token by enrolling; create or re-enrol the host")
        case TokenRole.ADMIN | TokenRole.OPERATOR if request.subject is not None:
            raise _invalid("subject", f"the token of an {request.role} has no subject; leave it out")
        case TokenRole.TENANT | TokenRole.TENANT_ADMIN if request.subject is None:
            raise _invalid("subject", "a tenant's token needs the tenant's name as its subject")
    if not actor.runs_the_cloud:
        _require_delegable(request)
    tenant = None
    if request.subject is not None:
        with named_by("$.subject"):
            tenant = tenant_named(session, request.subject)
            require_tenant(actor, tenant)
        _require_room(session, tenant)
    if actor.scopes is not None:
        _require_within(actor.scopes, request)
    end = _end(session, request)
    if actor.token_id is not None and actor.expires_at is not None and (end is None or end > actor.expires_at):
        raise _invalid("expires_in_s", "this token expires and cannot create one that lasts longer: ask for less")
    secret = new_secret()
    token = records.Token(
        id=uuid4(),
        secret_hash=hash_of(secret),
        role=request.role.value,
        tenant_id=tenant.id if tenant else None,
        created_at=now(session),
        expires_at=end,
        scopes=None if request.scopes is None else sorted(set(request.scopes)),
    )
    session.add(token)
    events.record(
        session,
        actor,
        "token.created",
        token.id,
        detail={"role": request.role.value, "subject": request.subject, "scopes": token.scopes},
    )
    session.flush()
    return TokenCreated(**_token(token, request.subject).model_dump(), secret=secret)


def delete_token(session: Session, actor: Actor, token_id: UUID) -> None:
    """Revokes a credential at once. For operators; only admins revoke admins' tokens.

    A tenant's admin revokes tokens that it could have created. An actor with scopes revokes only tokens without further
    scopes.
    """
    _require_keeper(actor)
    found = session.execute(
        select(records.Token.role, records.Token.scopes)
        .outerjoin(models.Tenant, models.Tenant.id == records.Token.tenant_id)
        .where(records.Token.id == token_id, reachable_tenants(actor))
    ).one_or_none()
    if found is None:
        raise unknown("token", token_id)
    role, scopes = found
    if actor.scopes is not None and (scopes is None or not actor.scopes.issuperset(scopes)):
        raise Refusal(
            Code.PERMISSION_DENIED, "this token has scopes and cannot revoke one with others; use one that has them"
        )
    if role == TokenRole.ADMIN.value:
        require_admin(actor)
    if not actor.runs_the_cloud and role not in _DELEGABLE:
        raise Refusal(
            Code.PERMISSION_DENIED, f"an operator created this token of the role {role}; ask one to revoke it"
        )
    of_host = session.execute(
        select(models.Host.id, models.Host.name, records.Token.secret_hash)
        .join(records.Token, records.Token.host_id == models.Host.id)
        .where(records.Token.id == token_id)
        .with_for_update(of=models.Host)
    ).one_or_none()
    remove(session, records.Token, token_id, kind="token", name=token_id)
    if of_host is not None:
        credentials.remember_all(session, token_id, of_host.secret_hash, of_host.id, of_host.name)
    events.record(session, actor, "token.deleted", token_id)


def forget(session: Session) -> bool:
    """Removes some tokens that ended long ago, but never a host's. Returns True if there may be more."""
    token = records.Token
    ended = select(token.id).where(token.expires_at <= now(session) - KEPT_AFTER, token.host_id.is_(None))
    some = ended.limit(FORGOTTEN_AT_ONCE).scalar_subquery()
    return change(session, delete(token).where(token.id.in_(some))) == FORGOTTEN_AT_ONCE


def _require_room(session: Session, tenant: models.Tenant) -> None:
    """Locks the tenant until the commit, so that concurrent requests count each other's tokens."""
    session.execute(select(models.Tenant.id).where(models.Tenant.id == tenant.id).with_for_update(key_share=True))
    token = records.Token
    counts = or_(token.expires_at.is_(None), token.expires_at > now(session))
    used = session.scalar(select(func.count()).select_from(token).where(token.tenant_id == tenant.id, counts)) or 0
    if used >= TOKENS_MAX:
        detail = f"tenant {tenant.name} has {used} of {TOKENS_MAX} unexpired tokens"
        raise Refusal(
            Code.QUOTA_EXCEEDED,
            f"{detail}; revoke those that nobody needs",
            reasons=(Reason(code="quota.tokens", detail=detail),),
            limits={"tenant": tenant.name, "tokens": {"limit": TOKENS_MAX, "used": used, "requested": 1}},
        )


def _require_keeper(actor: Actor) -> None:
    if actor.role is not TokenRole.TENANT_ADMIN:
        require_operator(actor, ", or that of a tenant's admin")


def _require_delegable(request: TokenCreate) -> None:
    """Refuses a token that a tenant's admin may not create, because of its role or because it expires too late."""
    if request.role not in _DELEGABLE or request.subject is None:
        raise Refusal(
            Code.PERMISSION_DENIED, "a tenant's admin creates tokens of the roles tenant and viewer, of its own tenant"
        )
    if request.expires_in_s is None or request.expires_in_s > DELEGATED_MAX_S:
        raise _invalid("expires_in_s", f"say when the token expires, within {DELEGATED_MAX_S} seconds (366 days)")


def _require_within(scopes: frozenset[str], request: TokenCreate) -> None:
    if request.scopes is None or not scopes or not scopes.issuperset(request.scopes):
        raise Refusal(Code.PERMISSION_DENIED, "this token has scopes and cannot pass on others; name some of its own")


def _end(session: Session, request: TokenCreate) -> datetime | None:
    return now(session) + timedelta(seconds=request.expires_in_s) if request.expires_in_s else None


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
        scopes=token.scopes,
    )
