# SPDX-License-Identifier: Apache-2.0
"""Classes of slices."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    WINDOW_BYTES,
    Answer,
    Band,
    ExecutorCpu,
    ExecutorMemory,
    ExecutorTasks,
    Generation,
    Instant,
    MemBytes,
    Mode,
    Name,
    Policy,
    Request,
    ReservePeriodUs,
    Share,
)

RESERVE_PERIOD_US = 20_000


class ProfileCreate(Request):
    """A class of slices.

    `band` latency: its share is served ahead of other work, after `reserve_period_us` at the latest (20000 by default).
    `policy`: its slices go only to GPUs with this policy, by default to those with best_effort. Under equal_share
    slices are fair, under fixed_share strict, and neither has a latency band. `window_bytes`: host memory through which
    a VM's programs reach the executor of their slice, on GPUs that are lent to executors. The module has one size, 64
    MiB. `executor_*_max`: limits for all that runs on the host for a slice, unless the host's own limits are lower.
    """

    name: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Annotated[Mode, Field(strict=False)] = Mode.FAIR
    band: Annotated[Band, Field(strict=False)] = Band.FAIR
    reserve_period_us: ReservePeriodUs | None = None
    policy: Annotated[Policy, Field(strict=False)] | None = None
    window_bytes: MemBytes = WINDOW_BYTES
    executor_memory_max_bytes: ExecutorMemory = 0
    executor_tasks_max: ExecutorTasks = 0
    executor_cpu_max_permille: ExecutorCpu = 0


class Profile(Answer):
    """A class of slices. It never changes, so that claims keep the meaning that they had when they were made."""

    id: UUID
    name: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Mode
    band: Band = Band.FAIR
    reserve_period_us: int | None = None
    policy: Policy | None = None
    window_bytes: MemBytes = WINDOW_BYTES
    executor_memory_max_bytes: ExecutorMemory = 0
    executor_tasks_max: ExecutorTasks = 0
    executor_cpu_max_permille: ExecutorCpu = 0
    generation: Generation
    created_at: Instant
