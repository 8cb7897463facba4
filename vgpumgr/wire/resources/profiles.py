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
    """A class of slice.

    `band` latency: its share goes before others' work, after `reserve_period_us` at the latest (20000 unless given).
    `policy`: only on GPUs that are shared so; without one on those of policy best_effort. Under equal_share slices are
    fair, under fixed_share strict, and there is no latency band under either. `window_bytes`: memory of the host
    through which a VM's programs reach the executor of their slice, on GPUs that lend. The module has one size, 64 MiB.
    `executor_*_max`: limits of all that runs on the host for a slice, where those of its host are not lower.
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
    """A class of slice; it never changes, so that claims mean what they meant when they were made."""

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
