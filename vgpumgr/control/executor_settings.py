# SPDX-License-Identifier: Apache-2.0
"""Root's settings for the executors of this host: the tables `executor` and `gpus` of /etc/vgpumgr/agent.toml.

The root helper runs the programs that the file names as root. Therefore it reads the file itself, and takes no path
from the agent. The agent and `host doctor` read the same file to report what is wrong. Standard library only.
"""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from vgpumgr.control.sysfs import DRIVER, is_pci_address

LENDING = "lease"
"""The engine whose slices have executors."""

DIRECTORY = Path("/usr/lib/vgpumgr")
PROGRAMS = ("vgpu-executor", "vgpu-supervisor", "vgpu-child")

# No blanks, no quotes, and no characters that systemd expands.
_PATH = re.compile(r"/[A-Za-z0-9_./+:@~-]{1,250}")
_ENGINE = re.compile(r"[a-z]{1,31}")
_DRIVER = re.compile(r"[A-Za-z0-9_-]{1,31}")
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class ExecutorSettingsError(Exception):
    """The file cannot be used. The text names the file, the setting and what to do."""


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """How an executor is started. `library`: the accelerator's own OpenCL library, None if there are no executors.

    `directory`: the directory of the programs. `memory_max_bytes`, `tasks_max`, `cpu_max_permille` (1000 is one
    processor): limits of all processes of one slice on the host, 0 for no limit. `nvidia`: the N of /dev/nvidiaN, whose
    channels the gate stops; None if N is unknown or the GPU is not NVIDIA's. `compile_cache_bytes`, `gate_limit_ms`:
    see `vgpu-executor --help`.
    """

    library: Path | None = None
    directory: Path = DIRECTORY
    memory_max_bytes: int = 0
    tasks_max: int = 0
    cpu_max_permille: int = 0
    nvidia: int | None = None
    compile_cache_bytes: int = 64 << 20
    gate_limit_ms: int = 1000

    @property
    def program(self) -> Path:
        """The program that is started."""
        return self.directory / PROGRAMS[0]

    def lowered(self, *, memory_max_bytes: int, tasks_max: int, cpu_max_permille: int) -> "ExecutorSettings":
        """Return a copy with these limits where they are lower. 0 is no limit."""
        return replace(
            self,
            memory_max_bytes=_lower(memory_max_bytes, self.memory_max_bytes),
            tasks_max=_lower(tasks_max, self.tasks_max),
            cpu_max_permille=_lower(cpu_max_permille, self.cpu_max_permille),
        )

    def options(self) -> list[str]:
        """Return the program's arguments, except the slice."""
        return [
            *("--library", str(self.library)),
            *("--compile-cache-bytes", str(self.compile_cache_bytes)),
            *("--gate-limit-ms", str(self.gate_limit_ms)),
            *(() if self.nvidia is None else ("--nvidia", str(self.nvidia))),
        ]


def _lower(limit: int, other: int) -> int:
    return min(limit, other) if limit and other else limit or other


_RANGES = {
    "memory_max_bytes": (0, 1 << 50),
    "tasks_max": (0, 1 << 22),
    "cpu_max_permille": (0, 1_000_000),
    "nvidia": (0, 31),
    "compile_cache_bytes": (0, 1 << 40),
    "gate_limit_ms": (1, 600_000),
}


@dataclass(frozen=True, kw_only=True)
class GpuSettings:
    """Settings of one GPU. `engine`: "" keeps the present one.

    `driver`: the vendor's driver that keeps the function, so that our module adopts it; "" if our module is the driver.

    `processes`: the GPU is set aside for claims for processes, and no VM has a slice of it. `socket_group`: the group
    whose users may start programs there; "" for root alone.
    """

    engine: str = ""
    driver: str = ""
    processes: bool = False
    socket_group: str = ""
    executor: ExecutorSettings = ExecutorSettings()


@dataclass(frozen=True)
class HostSettings:
    """Settings of single GPUs by address, and of all other GPUs."""

    others: GpuSettings
    gpus: Mapping[str, GpuSettings]

    def of(self, gpu: str) -> GpuSettings:
        """Return the settings that apply to a GPU."""
        return self.gpus.get(gpu, self.others)

    def for_processes(self) -> frozenset[str]:
        """Return the GPUs that are set aside for processes."""
        return frozenset(gpu for gpu, settings in self.gpus.items() if settings.processes)


def parse(tables: Mapping[str, Any]) -> HostSettings:
    """Return the settings in a document's `executor` and `gpus`. A ValueError names setting and reason."""
    common = _executor("executor", tables.get("executor", {}), ExecutorSettings())
    gpus = {}
    for gpu, said in _table("gpus", tables.get("gpus", {})).items():
        where = f"gpus.{gpu!a}"
        if not is_pci_address(gpu):
            raise ValueError(f"{where}: not a PCI address; `lspci -D` prints them, like 0000:3b:00.0")
        of_gpu = _table(where, said)
        _known(where, of_gpu, {"engine", "driver", "executor", "workload", "socket_group"})
        engine = of_gpu.get("engine", "")
        if not isinstance(engine, str) or (engine and not _ENGINE.fullmatch(engine)):
            raise ValueError(
                f"{where}.engine: not the name of an engine; `cat vgpu/engines` in the GPU's sysfs directory lists them"
            )
        driver = _driver(f"{where}.driver", of_gpu.get("driver", ""), engine)
        executor = _executor(f"{where}.executor", of_gpu.get("executor", {}), common)
        processes, group = _workload(where, of_gpu, executor)
        gpus[gpu] = GpuSettings(
            engine=engine, driver=driver, executor=executor, processes=processes, socket_group=group
        )
    return HostSettings(GpuSettings(executor=common), gpus)


def load(path: Path, *, trusted: bool = False) -> HostSettings:
    """Return the settings in a file; defaults if there is no file. ExecutorSettingsError.

    `trusted`: refuse a file that anybody but this user and root may write.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            document = tomllib.load(file)
    except FileNotFoundError:
        return parse({})
    except OSError as error:
        raise ExecutorSettingsError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExecutorSettingsError(f"{path}: not valid TOML: {error}") from error
    if trusted and (status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise ExecutorSettingsError(f"{path}: users other than root may write it; `chown root` and `chmod 644` it")
    try:
        return parse(document)
    except ValueError as error:
        raise ExecutorSettingsError(f"{path}: {error}") from error


def _driver(where: str, said: object, engine: str) -> str:
    if not said:
        return ""
    if not isinstance(said, str) or not _DRIVER.fullmatch(said):
        raise ValueError(f"{where}: not the name of a driver; `lspci -k` prints it, like nvidia")
    if said == DRIVER:
        raise ValueError(f"{where}: omit it for a GPU that {DRIVER} drives, and list that GPU in /etc/vgpumgr/gpus")
    if engine != LENDING:
        raise ValueError(f"{where}: a GPU that {said} keeps needs engine {LENDING!r}")
    return said


def _workload(where: str, said: Mapping[str, Any], executor: ExecutorSettings) -> tuple[bool, str]:
    """Return whether a GPU is for processes, and the group whose users may start these."""
    workload, group = said.get("workload", "vm"), said.get("socket_group", "")
    if workload not in ("vm", "process"):
        raise ValueError(f'{where}.workload: must be "vm", or "process" for programs of this host')
    if group and (workload == "vm" or not isinstance(group, str) or not _GROUP.fullmatch(group)):
        raise ValueError(f'{where}.socket_group: must be the name of a group, for a GPU with workload = "process"')
    if workload == "vm":
        return False, ""
    for name in ("engine", "driver"):
        if said.get(name):
            raise ValueError(f'{where}.{name}: a GPU with workload = "process" does not use vgpumgr.ko; omit it')
    if executor.nvidia is None:
        raise ValueError(f'{where}.executor.nvidia: workload = "process" needs it; give the N of its /dev/nvidiaN')
    return True, str(group)


def _executor(where: str, said: object, base: ExecutorSettings) -> ExecutorSettings:
    table = _table(where, said)
    _known(where, table, {each.name for each in fields(ExecutorSettings)})
    changes: dict[str, Any] = {}
    for name, value in table.items():
        if name in _RANGES:
            least, most = _RANGES[name]
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{where}.{name}: must be a number from {least} to {most}")
            changes[name] = value
        elif isinstance(value, str) and _PATH.fullmatch(value):
            changes[name] = Path(value)
        else:
            raise ValueError(f"{where}.{name}: must be an absolute path of letters, digits and _./+:@~-")
    return replace(base, **changes)


def _table(where: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a table")
    return value


def _known(where: str, table: Mapping[str, Any], names: set[str]) -> None:
    for name in table:
        if name not in names:
            raise ValueError(f"{where}.{name}: unknown setting; known settings: {', '.join(sorted(names))}")
