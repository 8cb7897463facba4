# SPDX-License-Identifier: Apache-2.0
"""Which slices have executors, and with which of root's settings they are started."""

import logging
from typing import Any

from vgpumgr.control.executor_settings import LENDING, ExecutorSettingsError, HostSettings, load
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import BusyError
from vgpumgr_agent import faults
from vgpumgr_agent.helper.executors import ExecutorFailedError, Executors, Launch
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.helper.records import Record
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

READY_S = 5.0
"""How long a VM's start waits for an executor."""


class Execution:
    """Executors of slices on GPUs with the engine `lease`, which is lent to executors.

    Callers serialise calls for the same slice.
    """

    def __init__(self, sysfs: Sysfs, executors: Executors) -> None:
        self._sysfs = sysfs
        self._executors = executors

    def require_adoptable(self, gpu: str) -> None:
        """Require that root's settings name a driver for a GPU, which permits its adoption. Raises Refused."""
        if not self._settings().of(gpu).driver:
            where = self._sysfs.paths.agent_settings
            raise Refused(Code.GPU_UNLISTED, f"GPU {gpu} has no driver in {where}")

    def set_engine(self, gpu: str) -> None:
        """Set a GPU's configured engine, if one is configured. Raises Refused, VgpumgrError."""
        wanted = self._settings().of(gpu).engine
        if not wanted or (present := self._sysfs.read_gpu(gpu, "engine")) == wanted:
            return
        try:
            self._sysfs.write_gpu(gpu, "engine", wanted)
        except BusyError as error:
            raise Refused(
                Code.GPU_ENGINE,
                f"GPU {gpu} has engine {present}, and {self._sysfs.paths.agent_settings} asks for {wanted}; stop the "
                "VMs that use it, and unbind it from vgpumgr once",
            ) from error
        log.info("GPU %s: engine %s instead of %s", gpu, wanted, present)

    def start(self, record: Record, *, gpu: str, tenant: str, wait: bool) -> bool:
        """Start a slice's executor if its GPU has the engine `lease`. Return whether an executor was started.

        `gpu`, `tenant`: as the kernel reports them. Each limit is the lower one of root's limit for the GPU and the
        slice's limit. `wait`: wait until the executor is ready. Raises Refused, and then no executor runs.
        """
        if self._sysfs.read_gpu(gpu, "engine") != LENDING:
            return False
        uuid = record.uuid
        settings = (
            self._settings()
            .of(gpu)
            .executor.lowered(
                memory_max_bytes=record.memory_max_bytes,
                tasks_max=record.tasks_max,
                cpu_max_permille=record.cpu_max_permille,
            )
        )
        try:
            if settings.library is None:
                where = self._sysfs.paths.agent_settings
                raise ExecutorFailedError(f"{where} names no library for GPU {gpu}; set executor.library")
            launch = Launch(uuid=uuid, tenant=tenant, settings=settings)
            started = self._executors.start(launch, wait_s=READY_S if wait else 0)
        except (ExecutorFailedError, OSError) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise Refused(Code.EXECUTOR_FAILED, f"the executor of slice {uuid} does not run: {reason}") from error
        faults.point("execute.started")
        return started

    def stop(self, uuid: str) -> None:
        """Stop a slice's executor, if it has one. Raises Refused."""
        try:
            self._executors.stop(uuid)
        except (ExecutorFailedError, OSError) as error:
            raise Refused(Code.EXECUTOR_FAILED, f"the executor of slice {uuid} was not stopped: {error}") from error

    def all(self) -> list[dict[str, Any]]:
        """Return every executor, for the answer to `observe`."""
        return [
            {
                "uuid": found.uuid,
                "state": str(found.state),
                "pid": found.pid,
                "reason": found.reason,
                "memory_used_bytes": found.memory_used_bytes,
                "memory_bytes": found.memory_bytes,
            }
            for found in self._executors.all()
        ]

    def _settings(self) -> HostSettings:
        try:
            return load(self._sysfs.paths.agent_settings, trusted=True)
        except ExecutorSettingsError as error:
            raise Refused(Code.SETTINGS_INVALID, str(error)) from error
