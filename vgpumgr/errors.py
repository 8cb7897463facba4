# SPDX-License-Identifier: Apache-2.0
"""Everything vgpumgr raises on purpose, and the frozen codes that other programs match.

Codes are never changed or given another meaning; a code that nothing raises is not here.

    VgpumgrError
    ├── ControlUnavailableError     control.unavailable     the kernel module or mdev support is not there
    ├── ControlProtocolError        control.protocol        the kernel's answer makes no sense to us
    ├── DumpInterruptedError        control.interrupted     objects came and went during every attempt to list them
    └── RefusedError                control.refused         the kernel said no; the base of all that follow
        ├── UnknownGpuError         gpu.unknown             ENODEV
        ├── NotFoundError           object.unknown          ENOENT
        ├── InvalidFieldError       field.invalid           EINVAL
        ├── OutOfRangeError         field.out_of_range      ERANGE
        ├── BusyError               object.busy             EBUSY
        ├── AlreadyExistsError      object.exists           EEXIST
        ├── StaleGenerationError    generation.stale        ESTALE
        ├── NoCapacityError         capacity.none           ENOSPC
        └── NotPermittedError       permission.denied       EPERM, EACCES
"""

import errno as _errno
import os
from typing import ClassVar


class VgpumgrError(Exception):
    """Base of all. `code` is the frozen name of what happened."""

    code: ClassVar[str]


class ControlUnavailableError(VgpumgrError):
    """vgpumgr.ko is not loaded, or the kernel lacks what it needs."""

    code = "control.unavailable"


class ControlProtocolError(VgpumgrError):
    """An answer was truncated, malformed or not the one that was asked for."""

    code = "control.protocol"


class DumpInterruptedError(VgpumgrError):
    """A list could not be read in one consistent piece; try again later."""

    code = "control.interrupted"


class RefusedError(VgpumgrError):
    """The kernel refused a request and changed nothing.

    `operation`: what was asked for, as in ``tenant-set`` or ``write weight``. `errno`: why, as a number.
    `field`: the attribute at fault, "" if it is none of them. `reason`: the kernel's own words.
    """

    code = "control.refused"

    def __init__(self, *, operation: str, errno: int, field: str = "", reason: str = "") -> None:
        self.operation = operation
        self.errno = errno
        self.field = field
        self.reason = reason or os.strerror(errno)
        super().__init__(str(self))

    def __str__(self) -> str:
        named = not self.field or self.reason.startswith(f"{self.field}:")
        what = self.reason if named else f"{self.field}: {self.reason}"
        return f"{self.operation}: {what} [{_errno.errorcode.get(self.errno, self.errno)}]"


class UnknownGpuError(RefusedError):
    """No such GPU, or it is being removed."""

    code = "gpu.unknown"


class NotFoundError(RefusedError):
    """No such tenant, slice, mdev type or attribute."""

    code = "object.unknown"


class InvalidFieldError(RefusedError):
    """A value is malformed, or a required one is missing."""

    code = "field.invalid"


class OutOfRangeError(RefusedError):
    """A value lies outside what the GPU accepts."""

    code = "field.out_of_range"


class BusyError(RefusedError):
    """In use; or, for an attribute of a slice, a tenant is set and netlink is the writer."""

    code = "object.busy"


class AlreadyExistsError(RefusedError):
    """A slice of this UUID exists."""

    code = "object.exists"


class StaleGenerationError(RefusedError):
    """The tenant was changed by somebody else since it was read."""

    code = "generation.stale"


class NoCapacityError(RefusedError):
    """The GPU's device memory does not suffice."""

    code = "capacity.none"


class NotPermittedError(RefusedError):
    """The caller lacks CAP_NET_ADMIN, or root."""

    code = "permission.denied"


_BY_ERRNO: dict[int, type[RefusedError]] = {
    _errno.ENODEV: UnknownGpuError,
    _errno.ENOENT: NotFoundError,
    _errno.EINVAL: InvalidFieldError,
    _errno.ERANGE: OutOfRangeError,
    _errno.EBUSY: BusyError,
    _errno.EEXIST: AlreadyExistsError,
    _errno.ESTALE: StaleGenerationError,
    _errno.ENOSPC: NoCapacityError,
    _errno.EPERM: NotPermittedError,
    _errno.EACCES: NotPermittedError,
}


def refused(*, operation: str, errno: int, field: str = "", reason: str = "") -> RefusedError:
    """Return the exception that stands for `errno`, a positive number."""
    kind = _BY_ERRNO.get(errno, RefusedError)
    return kind(operation=operation, errno=errno, field=field, reason=reason)
