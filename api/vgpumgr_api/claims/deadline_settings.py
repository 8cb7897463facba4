# SPDX-License-Identifier: Apache-2.0
"""How long things may take before the API says that they do not get on: the table `[deadlines]` of the settings."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from vgpumgr.wire.fleet import LEASE_S

# The least is longer than an outage of the API that nobody notices; see `liveness`.
Deadline = Annotated[int, Field(ge=120, le=366 * 86400)]


class Deadlines(BaseModel):
    """Seconds. A claim is to be prepared, a prepared slice attached, a deleted one confirmed gone within these.

    `host_lost_s`: how long a host may be silent. `lease_s`: after that none of its VMs starts without the API; it is
    a setting of its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    claimed_s: Deadline = 3600
    prepared_s: Deadline = 600
    releasing_s: Deadline = 600
    host_lost_s: Deadline = 300
    lease_s: int = LEASE_S
