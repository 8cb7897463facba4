# SPDX-License-Identifier: Apache-2.0
"""The actor that makes a request, and what it may reach.

An operator reaches everything except the audit and the routes of a host's agent; an admin also reaches the audit. A
tenant reaches itself and, if it is an account, its projects; objects of others do not exist for it. A viewer sees what
an operator sees, or what one tenant sees, and changes nothing. A host reaches its own desired state and its reports.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BindParameter, ColumnElement, Row, String, Uuid, bindparam, or_, select, true
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.errors import Refusal

SECRET = re.compile(r"vgpu_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, kw_only=True)
class Actor:
    """The actor that makes a request, and its address. `name` is for events, for example ``tenant:blue``.

    `account_id`: the account of the actor's tenant, if that tenant is a project. `scope` separates the idempotency keys
    of different actors; if it is empty, role and tenant separate them, so that a request may be repeated with a
    successor token. `scopes`: what the token permits; None: everything that its role permits. `certified`: the actor
    showed a certificate. `expires_at`: when the token expires. `secret_hash`: the hash of the token shown. `epoch`: the
    database's epoch at the lookup; None for an actor without a request.
    """

    token_id: UUID | None
    role: TokenRole
    name: str
    tenant_id: UUID | None = None
    account_id: UUID | None = None
    host_id: UUID | None = None
    request_id: str = ""
    source: str = ""
    scope: str = ""
    scopes: frozenset[str] | None = None
    certified: bool = False
    expires_at: datetime | None = None
    secret_hash: str = field(default="", repr=False)
    epoch: UUID | None = None

    @property
    def runs_the_cloud(self) -> bool:
        """Whether the actor may change objects that belong to no tenant or host."""
        return self.role in (TokenRole.ADMIN, TokenRole.OPERATOR)

    @property
    def sees_the_cloud(self) -> bool:
        """Whether the actor sees everything, not only one tenant or host."""
        return self.runs_the_cloud or (self.role is TokenRole.VIEWER and self.tenant_id is None)


_TOKEN = records.Token
# Built once: every request runs one of these statements, and building one costs more than running it.
_SUBJECTS = (
    select(
        _TOKEN.id,
        _TOKEN.role,
        _TOKEN.tenant_id,
        _TOKEN.host_id,
        _TOKEN.expires_at,
        _TOKEN.scopes,
        models.Tenant.name.label("tenant"),
        models.Tenant.account_id,
        models.Host.name.label("host"),
        select(models.Installation.epoch).scalar_subquery().label("epoch"),
    )
    .outerjoin(models.Tenant, models.Tenant.id == _TOKEN.tenant_id)
    .outerjoin(models.Host, models.Host.id == _TOKEN.host_id)
)
_BY_SECRET = _SUBJECTS.where(_TOKEN.secret_hash == bindparam("secret_hash"))
_BY_ID = _SUBJECTS.where(_TOKEN.id == bindparam("id"))


def new_secret() -> str:
    """Returns a credential of 256 random bits, with a prefix that scanners for leaked secrets can recognise."""
    return f"vgpu_{secrets.token_urlsafe(32)}"


def hash_of(secret: str) -> str:
    """Returns the stored form of a secret. The secret is random, so a fast hash without salt is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


def local_operator(name: str, role: TokenRole = TokenRole.OPERATOR) -> Actor:
    """Returns the actor for a person who runs ``vgpumgr-api`` on the API's own machine."""
    return Actor(token_id=None, role=role, name=name)


def authenticate(session: Session, secret: str, *, request_id: str = "", source: str = "") -> Actor:
    """Returns the actor with this secret.

    Raises Refusal: AUTH_INVALID for an unknown secret, AUTH_EXPIRED for an expired one.
    """
    found = None
    if SECRET.fullmatch(secret):
        found = session.execute(_BY_SECRET, {"secret_hash": hash_of(secret)}).one_or_none()
    if found is None:
        raise invalid(session, secret, "this token is unknown or revoked; ask an operator for a new one")
    if found.expires_at is not None and found.expires_at <= now(session):
        raise Refusal(
            Code.AUTH_EXPIRED,
            "this token has expired; ask an operator for a new one",
            by=actor_of(found, request_id=request_id, source=source),
        )
    return actor_of(found, request_id=request_id, source=source, secret_hash=hash_of(secret))


def token_with(session: Session, token_id: UUID) -> Row[*tuple[Any, ...]] | None:
    """Returns the row that `actor_of` takes, None for a credential that is unknown or revoked."""
    return session.execute(_BY_ID, {"id": token_id}).one_or_none()


def actor_of(
    token: Row[*tuple[Any, ...]], *, request_id: str, source: str, certified: bool = False, secret_hash: str = ""
) -> Actor:
    """Returns the actor with this credential."""
    return Actor(
        token_id=token.id,
        role=TokenRole(token.role),
        name=f"{token.role}:{token.host or token.tenant or token.id}",
        tenant_id=token.tenant_id,
        account_id=token.account_id,
        host_id=token.host_id,
        request_id=request_id,
        source=source,
        scopes=None if token.scopes is None else frozenset(token.scopes),
        certified=certified,
        expires_at=token.expires_at,
        secret_hash=secret_hash,
        epoch=token.epoch,
    )


def credential_counts() -> ColumnElement[bool]:
    """Whether the credential of `credential_parameters` still exists and has the same secret."""
    shown: BindParameter[str] = bindparam("credential_hash", type_=String())
    return (
        select(_TOKEN.id)
        .where(_TOKEN.id == bindparam("credential_id", type_=Uuid()), or_(shown == "", _TOKEN.secret_hash == shown))
        .exists()
    )


def credential_parameters(actor: Actor) -> dict[str, Any]:
    return {"credential_id": actor.token_id, "credential_hash": actor.secret_hash}


_COUNTS = select(credential_counts())


def require_credential(session: Session, actor: Actor) -> None:
    """Refuses an actor whose credential is in the database's `tokens` and was revoked since the lookup."""
    if actor.token_id is not None and not session.connection().scalar(_COUNTS, credential_parameters(actor)):
        raise revoked()


def confirm(session: Session, actor: Actor) -> None:
    """Refuses an actor whose credential has ended since the lookup, which was before this transaction.

    Much time may have passed: the body had to arrive and the request had to wait for a place. For hosts `own_host` does
    this check, because it can also report a fence.
    """
    require_unexpired(session, actor)
    if actor.role is not TokenRole.HOST:
        require_credential(session, actor)


def require_unexpired(session: Session, actor: Actor) -> None:
    """Refuses an actor whose token, ours or an issuer's, has expired since the lookup. Makes no query for the token."""
    if actor.expires_at is not None and actor.expires_at <= now(session):
        raise Refusal(Code.AUTH_EXPIRED, "this token has expired; ask for a new one")


def revoked() -> Refusal:
    return Refusal(Code.AUTH_INVALID, "this credential was revoked; ask an operator for a new one")


def invalid(session: Session, secret: str, detail: str) -> Refusal:
    """Returns the refusal for a void credential: HOST_FENCED for a credential of a fenced host, else AUTH_INVALID."""
    former = records.FormerSecret
    fenced = session.scalar(select(former.host).where(former.secret_hash == hash_of(secret), former.fenced))
    return Refusal(Code.AUTH_INVALID, detail) if fenced is None else _fenced(fenced)


def _fenced(host: str) -> Refusal:
    return Refusal(
        Code.HOST_FENCED,
        f"host {host} was declared dead and its slices are given up; stop the VMs that still run there, and have it"
        " re-enrolled",
        by=Actor(token_id=None, role=TokenRole.HOST, name=f"host:{host}"),
    )


def require_scope(actor: Actor, needed: str) -> None:
    """Refuses an actor whose scopes lack `needed`, for example ``slices:read``. An actor without scopes passes."""
    if actor.scopes is not None and needed not in actor.scopes:
        raise Refusal(Code.PERMISSION_DENIED, f"this token lacks the scope {needed}; use one that has it")


def require_admin(actor: Actor) -> None:
    """Refuses every actor except admins."""
    if actor.role is not TokenRole.ADMIN:
        raise Refusal(Code.PERMISSION_DENIED, "this needs an admin's token")


def require_operator(actor: Actor, or_whose: str = "") -> None:
    """Refuses every actor except operators and admins. `or_whose`: other permitted roles, for the refusal's text."""
    if not actor.runs_the_cloud:
        raise Refusal(Code.PERMISSION_DENIED, f"this needs an operator's token{or_whose}")


def require_view(actor: Actor) -> None:
    """Refuses an actor that does not see the whole cloud: only operators, admins and cloud-wide viewers pass."""
    if not actor.sees_the_cloud:
        raise Refusal(Code.PERMISSION_DENIED, "this needs an operator's token, or a viewer's of the whole cloud")


def require_change(actor: Actor) -> None:
    """Refuses viewers and hosts; operators and tenants pass."""
    require_person(actor)
    if actor.role is TokenRole.VIEWER:
        raise Refusal(
            Code.PERMISSION_DENIED, "a viewer's token cannot change anything; use an operator's or a tenant's"
        )


def require_person(actor: Actor) -> None:
    """Refuses hosts; operators, tenants and viewers pass."""
    if actor.role is TokenRole.HOST:
        raise Refusal(Code.PERMISSION_DENIED, "a host's token serves its agent only; use an operator's or a tenant's")


def require_tenant(actor: Actor, tenant: models.Tenant) -> None:
    """Refuses an actor that may not see this tenant, as if the tenant did not exist.

    The tenant itself, its account, and actors that see the whole cloud pass.
    """
    require_person(actor)
    if not actor.sees_the_cloud and actor.tenant_id not in (tenant.id, tenant.account_id):
        raise unknown("tenant", tenant.name)


def own_host(session: Session, actor: Actor, asked: str) -> models.Host:
    """Returns the host whose agent the actor is. Refuses any other `asked` than the name or UUID of this host."""
    if actor.role is not TokenRole.HOST:
        raise Refusal(Code.PERMISSION_DENIED, "this needs the token of the host's agent")
    host = session.get(models.Host, actor.host_id)
    if host is None or asked not in (host.name, str(host.id)):
        raise unknown("host", asked)
    require_unrevoked(session, actor, host)
    return host


def require_own(actor: Actor, asked: str) -> UUID:
    """Returns the id of the host whose agent the actor is, like `own_host`, but without reading the database."""
    if actor.role is not TokenRole.HOST or actor.host_id is None:
        raise Refusal(Code.PERMISSION_DENIED, "this needs the token of the host's agent")
    if asked != str(actor.host_id) and actor.name != f"host:{asked}":
        raise unknown("host", asked)
    return actor.host_id


def require_unrevoked(session: Session, actor: Actor, host: models.Host) -> None:
    """Refuses a host whose credential was revoked since the lookup, for example by a fence."""
    if not session.connection().scalar(_COUNTS, credential_parameters(actor)):
        fenced = session.scalar(select(models.Host.fenced_at).where(models.Host.id == host.id))
        raise (
            Refusal(Code.AUTH_INVALID, "this token was revoked; enrol again") if fenced is None else _fenced(host.name)
        )


def reachable_tenants(actor: Actor) -> ColumnElement[bool]:
    """Returns the condition on `models.Tenant` that selects the tenants that `actor` may see."""
    require_person(actor)
    if actor.sees_the_cloud:
        return true()
    return or_(models.Tenant.id == actor.tenant_id, models.Tenant.account_id == actor.tenant_id)


def unknown(kind: str, name: object) -> Refusal:
    """Returns the refusal for an object that does not exist, or that the actor may not know of."""
    return Refusal(Code.OBJECT_UNKNOWN, f"no {kind} {str(name)[:80]!r}; list them to see which there are")
