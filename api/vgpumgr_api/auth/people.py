# SPDX-License-Identifier: Apache-2.0
"""Maps a person whom an OIDC issuer has authenticated to an actor."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor, hash_of
from vgpumgr_api.auth.oidc import Person
from vgpumgr_api.db import models
from vgpumgr_api.errors import Refusal
from vgpumgr_api.resources.text import printable


def recognise(session: Session, person: Person, *, request_id: str = "", source: str = "") -> Actor:
    """Returns the actor. Raises Refusal(PERMISSION_DENIED) if the tenant that the token names does not exist."""
    tenant_id = account_id = None
    epoch = session.scalar(select(models.Installation.epoch))
    if person.tenant is not None:
        tenant = models.Tenant
        found = session.execute(select(tenant.id, tenant.account_id).where(tenant.name == person.tenant)).one_or_none()
        if found is None:
            raise Refusal(Code.PERMISSION_DENIED, f"this token names tenant {person.tenant}, which does not exist here")
        tenant_id, account_id = found
    return Actor(
        token_id=None,
        role=person.role,
        name=f"{person.role.value}:{_called(person)}"[:128],
        tenant_id=tenant_id,
        account_id=account_id,
        request_id=request_id,
        source=source,
        expires_at=person.expires_at,
        epoch=epoch,
        scope=hash_of("\n".join((person.issuer, person.subject, person.role, str(tenant_id)))),
    )


def _called(person: Person) -> str:
    """The names of issuers contain no slash, so people of different issuers never get the same name."""
    return f"{person.realm}/{printable(person.subject)}" if person.realm else printable(person.subject)
