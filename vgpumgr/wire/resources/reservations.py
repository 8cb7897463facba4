# SPDX-License-Identifier: Apache-2.0
"""Capacity that is reserved for later claims."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import Answer, Generation, Instant, LabelKey, LabelValue, Name, Request
from vgpumgr.wire.resources.slices import BATCH_MAX, Placement, SliceTie, Tie


class ReservationCreate(Request):
    """Reserves `places` for slices of one profile, in quotas and on GPUs, for `expires_in_s` seconds from now.

    `placement`, `selector`, `host`, `affinity` and `anti_affinity`: as in a claim. The last two apply to the places,
    among each other and with the tenant's slices, and to the slices that take them.
    """

    tenant: Name
    profile: Name
    places: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    expires_in_s: Annotated[int, Field(ge=1, le=366 * 86400)]
    placement: Annotated[Placement, Field(strict=False)] = Placement.PACK
    selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    host: Name | None = None
    affinity: Tie | None = None
    anti_affinity: Tie | None = None


class Reservation(Answer):
    """Capacity reserved for claims that name it. At `expires_at`, what is left of it is freed."""

    id: UUID
    tenant: Name
    profile: Name
    places: int
    places_left: int
    expires_at: Instant
    affinity: SliceTie | None = None
    anti_affinity: SliceTie | None = None
    generation: Generation
    created_at: Instant
