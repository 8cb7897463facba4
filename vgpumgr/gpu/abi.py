# SPDX-License-Identifier: Apache-2.0
"""Direct calls of an agent to NVIDIA's resource manager. The layouts are those of native/rm_abi.h.

Handles are the resource manager's. The *open file* on which a call is made decides whether the call is allowed,
whichever process holds the file.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

CONTROL = 0xC020462A
_SYS_PIDFD_GETFD = 438
_CONTROL_LAYOUT = struct.Struct("=IIIIQII")

SET_TIMESLICE = 0xA06C0103
GET_TIMESLICE = 0xA06C0104
GROUP_GET_INFO = 0xA06C0106
SET_PREEMPTION_MODE = 0x20801210
DISABLE_CHANNELS = 0x2080110B

GATE_BRANCH = 580
"""The driver branch on which disabling channels was measured: native/rm_abi.h."""
_DISABLE_MOST = 64

SETS_COMPUTE = 0x1
COMPUTE_WFI = 0

STATUS_WORDS = {
    0x00: "OK",
    0x19: "INSERT_DUPLICATE_NAME",
    0x1B: "INSUFFICIENT_PERMISSIONS",
    0x1F: "INVALID_ARGUMENT",
    0x22: "INVALID_CLASS",
    0x23: "INVALID_CLIENT",
    0x36: "INVALID_OBJECT_PARENT",
    0x3A: "INVALID_PARAM_STRUCT",
    0x3D: "INVALID_POINTER",
    0x56: "NOT_SUPPORTED",
    0x57: "OBJECT_NOT_FOUND",
}


def status_word(status: int) -> str:
    """Return the driver's name of a status, or its number."""
    return STATUS_WORDS.get(status, f"{status:#x}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The resource manager's status, and the parameters after the call."""

    status: int
    params: bytes


def control(fd: int, *, client: int, target: int, cmd: int, params: bytes) -> Answer:
    """Make one control call on the object `target` of `client`. Raises OSError if the file itself refuses."""
    buffer = ctypes.create_string_buffer(params, max(len(params), 1))
    call = bytearray(_CONTROL_LAYOUT.pack(client, target, cmd, 0, ctypes.addressof(buffer), len(params), 0))
    fcntl.ioctl(fd, CONTROL, call, True)
    return Answer(status=_CONTROL_LAYOUT.unpack(call)[6], params=buffer.raw[: len(params)])


def set_timeslice(fd: int, *, client: int, group: int, timeslice_us: int) -> int:
    """Ask for a timeslice of a channel group; return the status. It takes effect at once, if at all."""
    params = struct.pack("=Q", timeslice_us)
    return control(fd, client=client, target=group, cmd=SET_TIMESLICE, params=params).status


def get_timeslice_us(fd: int, *, client: int, group: int) -> tuple[int, int]:
    """Return status and timeslice from the driver's records, which say nothing about the hardware."""
    answer = control(fd, client=client, target=group, cmd=GET_TIMESLICE, params=bytes(8))
    return answer.status, struct.unpack("=Q", answer.params)[0]


def set_compute_preemption(fd: int, *, client: int, subdevice: int, channel: int, mode: int) -> int:
    """Ask for a compute preemption mode of a channel; return the status."""
    params = struct.pack("=IIIIIxxxxQ", SETS_COMPUTE, channel, 0, mode, 0, 0)
    return control(fd, client=client, target=subdevice, cmd=SET_PREEMPTION_MODE, params=params).status


def disable_channels(fd: int, *, client: int, subdevice: int, channels: Sequence[int], disable: bool) -> int:
    """Stop channels in the middle of their work, or resume them; return the status.

    ValueError if one call cannot take that many channels. Two such calls at the same time, from any processes, both
    hang.
    """
    if len(channels) > _DISABLE_MOST:
        raise ValueError(f"channels: {len(channels)} are more than {_DISABLE_MOST}")
    params = bytearray(struct.pack("=B3xIBB6xQ512x", disable, len(channels), 0, 0, 0))
    for index, channel in enumerate(channels):
        struct.pack_into("=I", params, 24 + 4 * index, client)
        struct.pack_into("=I", params, 280 + 4 * index, channel)
    return control(fd, client=client, target=subdevice, cmd=DISABLE_CHANNELS, params=bytes(params)).status


def take_file(pid: int, fd: int) -> int:
    """Return a new descriptor for another process's open file. Raises OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        taken = int(ctypes.CDLL(None, use_errno=True).syscall(_SYS_PIDFD_GETFD, pidfd, fd, 0))
    finally:
        os.close(pidfd)
    if taken < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return taken


def quantised_us(timeslice_us: int) -> int:
    """Round down to a value of the hardware's field, an 8-bit timeout with a 4-bit scale."""
    if timeslice_us < 1:
        return 0
    scale = min(max(timeslice_us.bit_length() - 8, 0), 15)
    return min(timeslice_us >> scale, 255) << scale
