# SPDX-License-Identifier: Apache-2.0
"""Who asks, and what they may reach.

An operator reaches everything but the audit and the part of a host's agent; an admin the audit, too. A tenant reaches
itself and, if it is an account, its projects; whatever belongs to others does not exist for it. A viewer sees what an
operator does, or what a tenant does, and changes nothing. A host reaches its own desired state and reports.
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
    """Who makes a request, and from which address. `name` is for events, as in ``tenant:blue``.

    `account_id`: the account that its tenant is a project of. `scope` tells the idempotency keys of one from those of
    others; if it is empty, by role and tenant, so that the next token may repeat a request. `scopes`: what the token
    is good for; None: all that its role may do. `certified`: it showed a certificate. `expires_at`: when the token
    ends, by itself. `secret_hash`: of the token that it showed. `epoch`: the database's when it was looked up; None
    for who comes by no request.
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
        """Whether it may change what belongs to nobody in particular."""
        return self.role in (TokenRole.ADMIN, TokenRole.OPERATOR)

    @property
    def sees_the_cloud(self) -> bool:
        """Whether no tenant's and no host's bounds hold for it."""
        return self.runs_the_cloud or (self.role is TokenRole.VIEWER and self.tenant_id is None)


_TOKEN = records.Token
# Made once: every request runs one of these, and to make one costs more than to run it.
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
    """A credential of 256 random bits, recognisable as ours to those who search for leaked ones."""
    return f"vgpu_{secrets.token_urlsafe(32)}"


def hash_of(secret: str) -> str:
    """What is stored of a secret. It is random, so that a fast hash without salt does."""
    return hashlib.sha256(secret.encode()).hexdigest()


def local_operator(name: str, role: TokenRole = TokenRole.OPERATOR) -> Actor:
    """The person at the API's own machine who runs ``vgpumgr-api``."""
    return Actor(token_id=None, role=role, name=name)


def authenticate(session: Session, secret: str, *, request_id: str = "", source: str = "") -> Actor:
    """Returns who has this secret. Raises Refusal: AUTH_INVALID if nobody has, AUTH_EXPIRED if no longer."""
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
    """Returns what `actor_of` takes, None for a credential that is unknown or revoked."""
    return session.execute(_BY_ID, {"id": token_id}).one_or_none()


def actor_of(
    token: Row[*tuple[Any, ...]], *, request_id: str, source: str, certified: bool = False, secret_hash: str = ""
) -> Actor:
    """Returns who has this credential."""
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
    """Whether a credential is still there, given those `credential_parameters`; a secret also is void once replaced."""
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
    """Refuses who came with one of our credentials if that was revoked since."""
    if actor.token_id is not None and not session.connection().scalar(_COUNTS, credential_parameters(actor)):
        raise revoked()


def confirm(session: Session, actor: Actor) -> None:
    """Refuses an actor whose credential has ended since it was looked up, which was before this transaction.

    Much time may have passed: the body had to arrive, and the request to get a place. For hosts `own_host` does this,
    and tells more.
    """
    require_unexpired(session, actor)
    if actor.role is not TokenRole.HOST:
        require_credential(session, actor)


def require_unexpired(session: Session, actor: Actor) -> None:
    """Refuses who came with a token, of ours or of an issuer, that has expired since. Asks the database nothing."""
    if actor.expires_at is not None and actor.expires_at <= now(session):
        raise Refusal(Code.AUTH_EXPIRED, "this token has expired; ask for a new one")


def revoked() -> Refusal:
    return Refusal(Code.AUTH_INVALID, "this credential was revoked; ask an operator for a new one")


def invalid(session: Session, secret: str, detail: str) -> Refusal:
    """The refusal of a credential that does not count, or no longer: its host may have been fenced."""
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
    """Who has `needed`, as in ``slices:read``, passes, and who is not bound to scopes."""
    if actor.scopes is not None and needed not in actor.scopes:
        raise Refusal(Code.PERMISSION_DENIED, f"this token is not good for {needed}; use one with that scope")


def require_admin(actor: Actor) -> None:
    """Only admins pass."""
    if actor.role is not TokenRole.ADMIN:
        raise Refusal(Code.PERMISSION_DENIED, "this needs an admin's token")


def require_operator(actor: Actor, or_whose: str = "") -> None:
    """Operators and admins pass. `or_whose`: what the refusal says of others who may."""
    if not actor.runs_the_cloud:
        raise Refusal(Code.PERMISSION_DENIED, f"this needs an operator's token{or_whose}")


def require_view(actor: Actor) -> None:
    """Who sees the whole cloud passes: operators, admins, and viewers of all of it."""
    if not actor.sees_the_cloud:
        raise Refusal(Code.PERMISSION_DENIED, "this needs an operator's token, or a viewer's of the whole cloud")


def require_change(actor: Actor) -> None:
    """Operators and tenants pass; viewers and hosts do not."""
    require_person(actor)
    if actor.role is TokenRole.VIEWER:
        raise Refusal(Code.PERMISSION_DENIED, "a viewer's token changes nothing; use an operator's or a tenant's")


def require_person(actor: Actor) -> None:
    """Operators, tenants and viewers pass, hosts do not."""
    if actor.role is TokenRole.HOST:
        raise Refusal(Code.PERMISSION_DENIED, "a host's token serves its agent only; use an operator's or a tenant's")


def require_tenant(actor: Actor, tenant: models.Tenant) -> None:
    """Who sees the cloud passes, and who is of this tenant or of its account; to others it is unknown."""
    require_person(actor)
    if not actor.sees_the_cloud and actor.tenant_id not in (tenant.id, tenant.account_id):
        raise unknown("tenant", tenant.name)


def own_host(session: Session, actor: Actor, asked: str) -> models.Host:
    """Returns the host whose token this is, if it was `asked` for by name or UUID; no other host exists for it."""
    if actor.role is not TokenRole.HOST:
        raise Refusal(Code.PERMISSION_DENIED, "this needs the token of the host's agent")
    host = session.get(models.Host, actor.host_id)
    if host is None or asked not in (host.name, str(host.id)):
        raise unknown("host", asked)
    require_unrevoked(session, actor, host)
    return host


def require_own(actor: Actor, asked: str) -> UUID:
    """Returns the id of the host whose agent this is, as `own_host` does, without a look at the database."""
    if actor.role is not TokenRole.HOST or actor.host_id is None:
        raise Refusal(Code.PERMISSION_DENIED, "this needs the token of the host's agent")
    if asked != str(actor.host_id) and actor.name != f"host:{asked}":
        raise unknown("host", asked)
    return actor.host_id


def require_unrevoked(session: Session, actor: Actor, host: models.Host) -> None:
    """Refuses a host whose credential was taken away since it was looked at, as a fence does."""
    if not session.connection().scalar(_COUNTS, credential_parameters(actor)):
        fenced = session.scalar(select(models.Host.fenced_at).where(models.Host.id == host.id))
        raise (
            Refusal(Code.AUTH_INVALID, "this token was revoked; enrol again") if fenced is None else _fenced(host.name)
        )


def reachable_tenants(actor: Actor) -> ColumnElement[bool]:
    """The condition on `models.Tenant` that selects what `actor` may see."""
    require_person(actor)
    if actor.sees_the_cloud:
        return true()
    return or_(models.Tenant.id == actor.tenant_id, models.Tenant.account_id == actor.tenant_id)


def unknown(kind: str, name: object) -> Refusal:
    """There is no such object, or none that the actor may know of."""
    return Refusal(Code.OBJECT_UNKNOWN, f"no {kind} {str(name)[:80]!r}; list them to see which there are")
