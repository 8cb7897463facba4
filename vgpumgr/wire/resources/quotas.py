# SPDX-License-Identifier: Apache-2.0
"""What tenants may claim."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    TIMESLICE_US_MAX,
    TIMESLICE_US_MIN,
    Answer,
    Band,
    Generation,
    Mode,
    Name,
    Request,
    TimesliceUs,
)

PROFILES_MAX = 256


class QuotaPatch(Request):
    """A merge patch: what is left out stays. A limit may be set below what is used; see Quota.

    `profiles`, `mode` and `band`: null lets the tenant claim any. Existing slices stay, whatever is allowed from now
    on.
    """

    share_permille: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    mem_bytes: Annotated[int, Field(ge=0, le=1 << 60)] | None = None
    slices: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    timeslice_us: TimesliceUs | None = None
    timeslice_min_us: TimesliceUs | None = None
    timeslice_max_us: TimesliceUs | None = None
    profiles: Annotated[list[Name], Field(max_length=PROFILES_MAX)] | None = None
    mode: Annotated[Mode, Field(strict=False)] | None = None
    band: Annotated[Band, Field(strict=False)] | None = None


class Quota(Answer):
    """What a tenant may claim, and how its work is scheduled. Sums are over all GPUs.

    A limit below what is used removes no slice. New claims are refused, and until use fits again every slice of the
    tenant is enforced at share * limit / used (for a project, at the smaller of its own and its account's factor).
    `timeslice_us`: how long the tenant's group runs before the engine is offered to the next one. It always lies
    between `timeslice_min_us` and `timeslice_max_us`, and for a project between those of its account as well.
    `profiles`, `mode` and `band`: what may be claimed at all; null means anything. A project may claim only what its
    account may claim as well.
    """

    tenant: Name
    tenant_id: UUID | None = None
    share_permille: int
    mem_bytes: int
    slices: int
    timeslice_us: TimesliceUs
    used_share_permille: int
    used_mem_bytes: int
    used_slices: int
    timeslice_min_us: TimesliceUs = TIMESLICE_US_MIN
    timeslice_max_us: TimesliceUs = TIMESLICE_US_MAX
    profiles: list[Name] | None = None
    mode: Mode | None = None
    band: Band | None = None
    generation: Generation
