# SPDX-License-Identifier: Apache-2.0
"""Owners of quota."""

from enum import StrEnum
from uuid import UUID

from vgpumgr.wire.common import Answer, Generation, Instant, Name, Request


class TenantKind(StrEnum):
    """An account holds projects; both may own slices and both have a quota."""

    ACCOUNT = "account"
    PROJECT = "project"


class TenantCreate(Request):
    """A tenant without `account` is an account, one with it a project of that account. Made with a zero quota."""

    name: Name
    account: Name | None = None


class Tenant(Answer):
    """An owner of quota. `name` is unique and never changes: the kernel schedules by it."""

    id: UUID
    name: Name
    kind: TenantKind
    account: Name | None
    generation: Generation
    created_at: Instant
