# SPDX-License-Identifier: Apache-2.0
"""The usage ledger: what hosts count, how the counts are booked, and what clients may read.

Every quantity is a whole number. An hour is a whole hour of UTC; as a number, it is the hours since the beginning of
1970. docs/usage.md explains each quantity.
"""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import COUNTER_MAX, Answer, Instant, Name, Page, PciAddress, Request

READINGS_MAX = 2000
"""The maximum number of readings that a host sends at once."""

COUNT_MAX_NS = 10**15
"""The maximum count of one hour: more than any clock error can cause. The sum of thousands still fits a column."""

Count = Annotated[int, Field(ge=0, le=COUNT_MAX_NS)]
SignedCount = Annotated[int, Field(ge=-COUNT_MAX_NS, le=COUNT_MAX_NS)]
Revision = Annotated[int, Field(ge=0, le=COUNTER_MAX)]
Hour = Annotated[int, Field(ge=0, le=100_000_000, description="hours since 1970-01-01T00:00Z")]


# ---- agent -> API


class Reading(Request):
    """All that a meter has counted so far for a tenant's group on one GPU in one hour.

    `revision`: that of the meter when this last changed. `due_ns`: `run_ns` plus the growth of what the scheduler owes.
    """

    hour: Hour
    gpu: PciAddress
    tenant: Annotated[str, Field(max_length=63)]
    revision: Revision
    run_ns: Count
    due_ns: SignedCount
    assured_ns: Count
    throttled_ns: Count
    reserved_ns: Count


class Readings(Request):
    """Everything of a meter that changed in the revisions after `after`, up to `through`.

    A meter keeps counting across starts of the agent, reboots and reloads of the module. `newest`: its last revision.
    """

    meter_id: Annotated[UUID, Field(strict=False)]
    after: Revision
    through: Revision
    newest: Revision
    readings: Annotated[list[Reading], Field(max_length=READINGS_MAX)]


class Metered(Answer):
    """`revision`: the ledger has this meter up to there; send what is above it, even if it was sent before.

    `restart`: this meter belongs to another host, or went back to an old state; begin a new one.
    """

    revision: int
    restart: bool = False


# ---- what may be read


class Granularity(StrEnum):
    """The time that a row covers."""

    HOUR = "hour"
    DAY = "day"
    TOTAL = "total"


class By(StrEnum):
    """What a row is for."""

    ACCOUNT = "account"
    TENANT = "tenant"
    GPU = "gpu"


class LedgerRow(Answer):
    """What one party was granted and used from `since` to `until`.

    Rows with `correction` add what became known after their hour was closed; rows without it never change once they are
    `closed`. `host` and `gpu` are empty unless the list is by GPU. `tenant` and `tenant_id` are empty if it is by
    account.
    """

    since: Instant
    until: Instant
    account: Name
    account_id: UUID
    tenant: str
    tenant_id: UUID | None
    host: str
    gpu: str
    correction: bool
    closed: bool
    slice_us: int
    releasing_us: int
    granted_ns: int
    mem_byte_us: int
    run_ns: int
    due_ns: int
    assured_ns: int
    throttled_ns: int
    reserved_ns: int


class LedgerRowPage(Page[LedgerRow]):
    """Rows of the ledger. Hours that begin before `closed_before` are closed, including those without a row."""

    closed_before: Instant


class UnbookedReason(StrEnum):
    """Why the ledger does not take what a host counted: no claim had that tenant's name, or no GPU can do that much."""

    UNATTRIBUTED = "unattributed"
    IMPLAUSIBLE = "implausible"


class UnbookedRow(Answer):
    """What a host counted for a tenant's group in the hour from `since` and the ledger lacks, in whole or in part.

    `tenant`: the name that the host reported, even if no tenant ever had it.
    """

    since: Instant
    host: Name
    gpu: str
    tenant: str
    reason: UnbookedReason
    run_ns: int
    due_ns: int
    assured_ns: int
    throttled_ns: int
    reserved_ns: int


class Grant(Answer):
    """The life of one claim: it is billed from `started_at` until `deleted_at`, and took room until `ended_at`."""

    id: UUID
    slice_id: UUID
    account: Name
    account_id: UUID
    tenant: Name
    tenant_id: UUID
    host: Name
    gpu: str
    share_permille: int
    mem_bytes: int
    started_at: Instant
    deleted_at: Instant | None
    ended_at: Instant | None
