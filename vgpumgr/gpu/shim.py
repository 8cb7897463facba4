# SPDX-License-Identifier: Apache-2.0
"""Runs programs under the shim, changes its timeslice while they run, and reads its log.

The shim works inside the tenant's own process, and only as long as that process cooperates. It measures what a driver
honours; it does not protect anything.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TIMESLICE_MAX_US = 255 << 15
CONTROL_TIMEOUT_S = 10.0

Preemption = Literal["pass", "refuse-wfi", "cilp"]
Record = dict[str, Any]


class ShimMissingError(Exception):
    """The shim was not compiled: this installation was built without a C compiler."""


class ShimControlError(Exception):
    """A live change was refused or not answered."""


def library() -> Path:
    """Return the shim's file, for LD_PRELOAD. Raises ShimMissingError."""
    found = sorted(Path(__file__).parent.glob("_shim*.so"))
    if not found:
        raise ShimMissingError(
            "the shim vgpumgr/gpu/_shim.so is missing; install vgpumgr where a C compiler is, or run"
            " `python -m vgpumgr.gpu._build` in a source tree"
        )
    return found[-1]


@dataclass(frozen=True, kw_only=True)
class ShimSettings:
    """The settings of one process. Without `timeslice_us` the shim only watches."""

    log: Path
    timeslice_us: int | None = None
    preemption: Preemption = "pass"
    control: Path | None = None

    def __post_init__(self) -> None:
        if self.timeslice_us is not None and not 1 <= self.timeslice_us <= TIMESLICE_MAX_US:
            raise ValueError(f"timeslice_us: {self.timeslice_us} is not within 1 to {TIMESLICE_MAX_US}")

    def environment(self) -> dict[str, str]:
        variables = {"VGPUMGR_SHIM_LOG": str(self.log), "VGPUMGR_SHIM_PREEMPTION": self.preemption}
        if self.timeslice_us is not None:
            variables["VGPUMGR_SHIM_TIMESLICE_US"] = str(self.timeslice_us)
        if self.control is not None:
            variables["VGPUMGR_SHIM_CONTROL"] = str(self.control)
        return variables


def change_timeslice(control: Path, pid: int, timeslice_us: int) -> Record:
    """Set the timeslice of all channel groups of a running process.

    Returns how many groups there were and how many accepted it. Raises ShimControlError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(CONTROL_TIMEOUT_S)
        try:
            channel.connect(f"{control}.{pid}")
            owner = struct.unpack("=iII", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            if owner != pid:
                raise ShimControlError(f"process {pid} does not take changes: process {owner} has its socket")
            channel.send(f"timeslice {timeslice_us}".encode())
            answer: Record = json.loads(channel.recv(4096) or b"{}")
        except (OSError, ValueError) as error:
            raise ShimControlError(f"process {pid} does not take changes: {error}") from error
    if "taken" not in answer:
        raise ShimControlError(f"process {pid}: {answer.get('error', 'no answer')}")
    return answer


def records(log: Path) -> list[Record]:
    """Return the shim's records in the order of writing, without a line that a dying process left incomplete."""
    if not log.exists():
        return []
    found = []
    for line in log.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [entry for entry in found if isinstance(entry, dict) and "event" in entry]
