# SPDX-License-Identifier: Apache-2.0
"""Points where a test kills the process, to prove that a restart repairs whatever state it leaves behind.

Without the environment variable VGPUMGR_FAULT a point does nothing. If the variable names a point, the process kills
itself with SIGKILL when it first reaches it.
"""

import os
import signal

VARIABLE = "VGPUMGR_FAULT"

HELPER_POINTS = (
    "configure.attached",
    "configure.set",
    "forget.deleted",
    "prepare.attached",
    "prepare.recorded",
    "prepare.created",
    "prepare.set",
    "prepare.granted",
    "apply.set",
    "withdraw.withdrawn",
    "remove.closed",
    "remove.stopped",
    "remove.removed",
    "remove.forgotten",
)
EXECUTOR_POINTS = ("execute.launched", "execute.started")
"""Points of the helper on GPUs with the engine `lease`. The first exists only without systemd."""
BROKER_POINTS = ("broker.written", "broker.applied")
"""Points of the helper for GPUs that are set aside for processes."""
AGENT_POINTS = (
    "enroll.answered",
    "enroll.stored",
    "desired.received",
    "desired.stored",
    "bind.answered",
    "bind.stored",
    "hook.configured",
    "hook.prepared",
    "hook.ready",
    "hook.released",
    "meter.added",
    "meter.counted",
    "reconcile.planned",
    "reconcile.acted",
    "report.sent",
)
CERTIFICATE_POINTS = ("renew.answered", "renew.stored")
"""Points of the agent if the API issues certificates."""

POINTS = HELPER_POINTS + EXECUTOR_POINTS + BROKER_POINTS + AGENT_POINTS + CERTIFICATE_POINTS


def point(name: str) -> None:
    """Kill the process here if VGPUMGR_FAULT names this point. Raises ValueError for a name that is not in POINTS."""
    if name not in POINTS:
        raise ValueError(f"no such fault point: {name}")
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
