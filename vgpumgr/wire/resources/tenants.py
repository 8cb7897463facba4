# SPDX-License-Identifier: Apache-2.0
"""Owners of quota."""

from enum import StrEnum
from uuid import UUID

from vgpumgr.wire.common import Answer, ExternalId, Generation, Instant, Name, Request


class TenantKind(StrEnum):
    """An account holds projects; both may own slices and both have a quota."""

    ACCOUNT = "account"
    PROJECT = "project"


class TenantCreate(Request):
    """A tenant without `account` is an account; with it, a project of that account. Its quota is zero at first.

    `external_id`: what the system that creates it calls it; no two tenants have the same.
    """

    name: Name
    account: Name | None = None
    external_id: ExternalId | None = None


class TenantPatch(Request):
    """A merge patch. `external_id`: null removes it."""

    external_id: ExternalId | None = None


class Tenant(Answer):
    """An owner of quota. `name` is unique and never changes: the kernel schedules by it.

    `external_id`: what another system calls it, such as a project's id or a name that is no DNS label; null if none
    was given. It is unique, may change, and is compared character by character.
    """

    id: UUID
    name: Name
    kind: TenantKind
    account: Name | None
    generation: Generation
    created_at: Instant
    external_id: str | None = None
