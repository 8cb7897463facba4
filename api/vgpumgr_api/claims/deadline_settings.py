# SPDX-License-Identifier: Apache-2.0
"""Deadlines after which the API reports that something makes no progress: the table `[deadlines]` of the settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from vgpumgr.wire.fleet import LEASE_S

# The minimum is longer than the longest outage of the API that `liveness` does not count as a gap.
Deadline = Annotated[int, Field(ge=120, le=366 * 86400)]


class Deadlines(BaseModel):
    """Seconds within which a claim must be prepared, a prepared slice attached, and a deleted slice confirmed gone.

    `host_lost_s`: how long a host may be silent. `lease_s`: the time after which a silent host starts no VM.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    claimed_s: Deadline = 3600
    prepared_s: Deadline = 600
    releasing_s: Deadline = 600
    host_lost_s: Deadline = 300
    lease_s: int = LEASE_S
