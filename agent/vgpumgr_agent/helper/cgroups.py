# SPDX-License-Identifier: Apache-2.0
"""A cgroup for each executor if systemd does not create it: vgpumgr/TENANT/UUID in the unified hierarchy.

An executor's processor time and memory are then charged to its tenant. A missing controller is skipped. Without the
unified hierarchy an executor has no separate cgroup.
"""

import logging
import time
from contextlib import suppress
from pathlib import Path

from vgpumgr.control.sysfs import write_file
from vgpumgr_agent.helper.executors import Launch

log = logging.getLogger(__name__)

MOUNT = Path("/sys/fs/cgroup")
_TOP = "vgpumgr"
_CPU_PERIOD_US = 1_000_000
"""The longest possible period. With this period even a thousandth of a processor is a quota of one millisecond."""
_EMPTY_WITHIN_S, _EMPTY_PAUSE_S = 2.0, 0.01


def make(mount: Path, launch: Launch) -> Path | None:
    """Return a new cgroup with an executor's limits, or None if it cannot be created."""
    if not (mount / "cgroup.controllers").exists():
        return None
    path = mount / _TOP / launch.tenant / launch.uuid
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.warning("slice %s: its executor has no cgroup: %s", launch.uuid, error.strerror)
        return None
    for above in (mount, mount / _TOP, path.parent):
        for controller in ("+cpu", "+memory", "+pids"):
            _write(above / "cgroup.subtree_control", controller)
    settings = launch.settings
    _write(path / "memory.max", str(settings.memory_max_bytes or "max"))
    _write(path / "pids.max", str(settings.tasks_max or "max"))
    quota_us = settings.cpu_max_permille * _CPU_PERIOD_US // 1000
    _write(path / "cpu.max", f"{quota_us or 'max'} {_CPU_PERIOD_US}")
    return path


def remove(mount: Path, uuid: str) -> None:
    """Kill all processes in an executor's cgroups. Remove these cgroups, and the tenant's cgroup if it is empty."""
    for path in (mount / _TOP).glob(f"*/{uuid}"):
        _write(path / "cgroup.kill", "1")
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while not _remove_all(path) and time.monotonic() < deadline:
            time.sleep(_EMPTY_PAUSE_S)
        if path.exists():
            log.warning("cgroup %s is not empty and stays", path)
        with suppress(OSError):  # the tenant's other slices have executors
            path.parent.rmdir()


def _remove_all(path: Path) -> bool:
    """Remove a cgroup and its children. Return whether all are gone."""
    try:
        for below in [entry for entry in path.iterdir() if entry.is_dir()]:
            _remove_all(below)
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, text: str) -> None:
    try:
        write_file(path, text)
    except OSError as error:
        log.debug("%s: %s", path, error)
