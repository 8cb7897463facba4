# SPDX-License-Identifier: Apache-2.0
"""The periodic jobs of every replica and their periods. If two replicas run a job at once, its work is done once."""

from functools import partial

from vgpumgr_api.auth import tokens
from vgpumgr_api.background import operating
from vgpumgr_api.background.housekeeping import Job
from vgpumgr_api.claims import deadlines, reservations
from vgpumgr_api.config import Config
from vgpumgr_api.events import outbox
from vgpumgr_api.fleet import boots
from vgpumgr_api.installation import liveness
from vgpumgr_api.operations import operations
from vgpumgr_api.placement import schedulable
from vgpumgr_api.tenancy import scaling
from vgpumgr_api.usage import books


def jobs(config: Config) -> list[Job]:
    """Returns the jobs of `serve`."""
    limits = config.deadlines.model_copy(update={"lease_s": config.lease_s})
    return [
        Job("say that the API lives", liveness.BEAT_S, liveness.beat),
        Job("look at operations", 2, operating.advance_next),
        Job("look for silent hosts", 15, partial(deadlines.silent_hosts, limits=limits)),
        Job("see whether hosts are one machine again", 15, boots.forget),
        Job("look for slices that are late", 15, partial(deadlines.overdue_slices, limits=limits)),
        Job("look for leases that ended", 60, partial(deadlines.ended_leases, limits=limits)),
        Job("watch slices that no host has named", 300, partial(deadlines.unnamed_slices, limits=limits)),
        Job("cut off old events", 60, partial(outbox.trim, kept_s=config.events_kept_s, kept=config.events_kept)),
        Job("give back what expired reservations hold", 30, reservations.expire),
        Job("let scaled shares follow their use", scaling.PERIOD_S, scaling.follow),
        Job("see which GPUs claims may find of use", schedulable.PERIOD_S, schedulable.follow),
        Job("forget operations", 600, operations.forget),
        Job("forget tokens that ended", 600, tokens.forget),
        Job("close the ledger's hours", 300, partial(books.tend, kept_days=config.usage_kept_days)),
    ]
