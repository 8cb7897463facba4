# SPDX-License-Identifier: Apache-2.0
"""All exceptions that vgpumgr raises on purpose, and the frozen codes that other programs match.

A code never changes and never gets another meaning. A code that is never raised is not listed.

    VgpumgrError
    ├── ControlUnavailableError     control.unavailable     the kernel module or mdev support is missing
    ├── ControlProtocolError        control.protocol        the kernel's answer is not valid
    ├── DumpInterruptedError        control.interrupted     a list changed during every attempt to read it
    ├── ApiError                    api.refused             the API refused; an instance carries the API's own code
    ├── ApiUnreachableError         api.unreachable         no connection, no TLS, or no answer in time
    ├── ApiAnswerError              api.answer              the answer is not from our API, or from another version
    ├── ArgumentError               argument.invalid        a value or a combination of values is not valid
    ├── SettingsError               settings.invalid        a configuration or token file is unusable
    ├── MissingError                object.missing          a list has no such object, or several
    ├── ClaimMismatchError          claim.mismatch          the claim is for another VM, or is being given back
    ├── DomainUnknownError          domain.unknown          libvirt has no such domain
    ├── LibvirtFailedError          libvirt.failed          libvirt is missing, does not answer, or refused
    ├── AgentUnreachableError       agent.unreachable       the host agent's socket is missing or silent
    ├── AgentRefusedError           agent.refused           the host agent refused; an instance carries its code
    ├── WaitEndedError              wait.ended              the awaited event did not happen in time
    ├── OperationFailedError        operation.failed        an operation failed or was cancelled
    ├── OutputError                 output.failed           the result could not be written
    ├── ScenarioError               scenario.invalid        a simulator's scenario, trace or setting is wrong
    ├── SimulatorMissingError       simulator.missing       the simulator or a part of it is not installed
    ├── ProbeRefusedError           probe.refused           a GPU cannot be measured; an instance carries its code
    ├── ProgramMissingError         program.missing         a program to start does not exist
    ├── ProgramUnusableError        program.unusable        a program to start cannot be executed
    ├── BrokerMissingError          broker.missing          the broker's programs are not built or not installed
    ├── BrokerUnreachableError      broker.unreachable      no broker has this run directory, or it is silent
    ├── BrokerAnswerError           broker.answer           the answer is not from a broker
    ├── BrokerRefusedError          broker.refused          a broker refused; an instance carries its code
    ├── ContainerRefusedError       container.refused       a container could bypass the fence, or is not understood
    └── RefusedError                control.refused         the kernel refused; the base of all below
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpumgr.wire.problem import Problem, Reason


class VgpumgrError(Exception):
    """The base class. `code` is the frozen name of the error."""

    code: str


class ControlUnavailableError(VgpumgrError):
    """vgpumgr.ko is not loaded, or the kernel lacks what it needs."""

    code = "control.unavailable"


class ControlProtocolError(VgpumgrError):
    """An answer was truncated, malformed, or did not belong to the request."""

    code = "control.protocol"


class DumpInterruptedError(VgpumgrError):
    """A list could not be read consistently, because its objects kept changing; try again later."""

    code = "control.interrupted"


class ApiError(VgpumgrError):
    """The API refused a request and stored nothing. `code` is the problem's own, see wire.problem.Code.

    `retry_after_s`: the earliest time to try again, 0 if the API gave none. `repeated`: the answer to an earlier
    attempt was lost, and that attempt may have been carried out.
    """

    code = "api.refused"

    def __init__(self, problem: "Problem", *, retry_after_s: float = 0, repeated: bool = False) -> None:
        self.problem = problem
        self.repeated = repeated
        self.retry_after_s = retry_after_s
        self.code = problem.code
        super().__init__(problem.detail)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """What happened and what to do, in one line."""
        return self.problem.detail

    @property
    def reasons(self) -> "list[Reason]":
        """The single reasons, if the API gave several."""
        return self.problem.reasons


class ApiUnreachableError(VgpumgrError):
    """The API's URL does not answer. A request that changes something may or may not have been carried out."""

    code = "api.unreachable"


class ApiAnswerError(VgpumgrError):
    """The answer is not from a matching API: another service, a proxy's page, or an API too old or too new."""

    code = "api.answer"


class ArgumentError(VgpumgrError):
    """A name, size, duration or combination of them is not valid; nothing was sent."""

    code = "argument.invalid"


class SettingsError(VgpumgrError):
    """The configuration, the token or the CA file is missing, unreadable or malformed."""

    code = "settings.invalid"


class MissingError(VgpumgrError):
    """No object has this name, or several do."""

    code = "object.missing"


class ClaimMismatchError(VgpumgrError):
    """A slice cannot be attached to this VM."""

    code = "claim.mismatch"


class DomainUnknownError(VgpumgrError):
    """No domain has this name or UUID."""

    code = "domain.unknown"


class LibvirtFailedError(VgpumgrError):
    """libvirt failed, or could not be reached. The text is libvirt's own where there is one."""

    code = "libvirt.failed"


class AgentUnreachableError(VgpumgrError):
    """This host's agent could not be reached."""

    code = "agent.unreachable"


class AgentRefusedError(VgpumgrError):
    """This host's agent refused; `code` is the agent's code."""

    code = "agent.refused"

    def __init__(self, reason: str, *, code: str = "agent.refused") -> None:
        self.code = code
        super().__init__(reason)


class WaitEndedError(VgpumgrError):
    """The time for waiting is over. The operation itself goes on."""

    code = "wait.ended"


class OperationFailedError(VgpumgrError):
    """An operation that was waited for has failed, or was cancelled."""

    code = "operation.failed"


class OutputError(VgpumgrError):
    """Standard output or a file could not be written completely."""

    code = "output.failed"


class ScenarioError(VgpumgrError):
    """Nothing was simulated. The text names file and line, the field, the value and what was expected.

    `problems`: every problem found, one line each; the text is the first of them.
    """

    code = "scenario.invalid"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(problems[0])


class SimulatorMissingError(VgpumgrError):
    """The `sim` extra or the compiled extension is missing."""

    code = "simulator.missing"


class ProbeRefusedError(VgpumgrError):
    """A GPU was not measured, or not completely; `code` is one of vgpumgr.gpu.refusals."""

    code = "probe.refused"

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class ProgramMissingError(VgpumgrError):
    """No file has this name, or the interpreter that the file names is missing."""

    code = "program.missing"


class ProgramUnusableError(VgpumgrError):
    """The file exists, but is no program, or not one that this user may execute."""

    code = "program.unusable"


class BrokerMissingError(VgpumgrError):
    """The programs that `make compute` builds are missing."""

    code = "broker.missing"


class BrokerUnreachableError(VgpumgrError):
    """No broker listens on the socket."""

    code = "broker.unreachable"


class BrokerAnswerError(VgpumgrError):
    """An answer on the broker's socket is not valid."""

    code = "broker.answer"


class BrokerRefusedError(VgpumgrError):
    """A broker refused a request, or would refuse it. Nothing was changed.

    `code`: the broker's own. `field`: the field at fault, "" if there is none.
    """

    code = "broker.refused"

    def __init__(self, reason: str, *, code: str = "broker.refused", field: str = "") -> None:
        self.code = code
        self.field = field
        super().__init__(reason)


class ContainerRefusedError(VgpumgrError):
    """`vgpumgr-oci` starts nothing, because a process of the container might run without the fence."""

    code = "container.refused"


class RefusedError(VgpumgrError):
    """The kernel refused a request and changed nothing.

    `operation`: the request, as in ``tenant-set`` or ``write weight``. `errno`: the error number. `field`: the
    attribute at fault, "" if there is none. `reason`: the kernel's own text.
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
    """The object is in use; or a slice's attribute was written, but its tenant is set and only netlink may write it."""

    code = "object.busy"


class AlreadyExistsError(RefusedError):
    """A slice of this UUID exists."""

    code = "object.exists"


class StaleGenerationError(RefusedError):
    """The tenant was changed by another writer since it was read."""

    code = "generation.stale"


class NoCapacityError(RefusedError):
    """The GPU does not have enough device memory."""

    code = "capacity.none"


class NotPermittedError(RefusedError):
    """The caller is not root, or lacks CAP_NET_ADMIN."""

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
    """Return the exception for `errno`, a positive number."""
    kind = _BY_ERRNO.get(errno, RefusedError)
    return kind(operation=operation, errno=errno, field=field, reason=reason)
