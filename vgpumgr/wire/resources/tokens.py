# SPDX-License-Identifier: Apache-2.0
"""Credentials."""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import Answer, Instant, Name, Request


class TokenRole(StrEnum):
    """`operator`: everything but the audit; `admin`: the audit and tokens of admins as well.

    `tenant` and `tenant-admin`: one tenant and, if it is an account, its projects. `viewer`: sees everything, or what a
    tenant sees. `host`: what one host's agent needs.
    """

    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    TENANT = "tenant"
    VIEWER = "viewer"
    HOST = "host"


SCOPED = (
    "audit",
    "events",
    "gpus",
    "hosts",
    "operations",
    "profiles",
    "quotas",
    "reservations",
    "slices",
    "tenants",
    "tokens",
    "usage",
)
"""The parts of ``/v1`` that a scope opens."""

Scope = Annotated[
    str,
    Field(
        pattern=rf"^({'|'.join(SCOPED)}):(read|write)$", description="`slices:read` for GET, `slices:write` for others"
    ),
]


class TokenCreate(Request):
    """`subject`: the tenant's name for `tenant` and `tenant-admin`; none for `admin` and `operator`; for `viewer` a
    tenant's name, or none to see everything. Hosts get their tokens by enrolling. `scopes`: the part of its role that
    the token is good for; all of it by default.
    """

    role: Annotated[TokenRole, Field(strict=False)]
    subject: Name | None = None
    expires_in_s: Annotated[int, Field(ge=60, le=10 * 366 * 86400)] | None = None
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=2 * len(SCOPED))] | None = None


class Token(Answer):
    """A credential, without its secret."""

    id: UUID
    role: TokenRole
    subject: Name | None
    created_at: Instant
    expires_at: Instant | None
    scopes: list[str] | None = None


class TokenCreated(Token):
    """A token with its `secret`, which is shown once; the API keeps a hash."""

    secret: str
