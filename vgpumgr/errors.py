# SPDX-License-Identifier: Apache-2.0
"""Everything vgpumgr raises on purpose, and the frozen codes that other programs match.

Codes are never changed or given another meaning; a code that nothing raises is not here.

    VgpumgrError
    ├── ControlUnavailableError     control.unavailable     the kernel module or mdev support is not there
    ├── ControlProtocolError        control.protocol        the kernel's answer makes no sense to us
    ├── DumpInterruptedError        control.interrupted     objects came and went during every attempt to list them
    ├── ApiError                    api.refused             the API said no; an instance carries the API's own code
    ├── ApiUnreachableError         api.unreachable         no connection, no TLS, or no answer in time
    ├── ApiAnswerError              api.answer              what answers there is not our API, or another version of it
    ├── ArgumentError               argument.invalid        a value that was given cannot be meant
    ├── SettingsError               settings.invalid        a configuration or token file is unusable
    ├── MissingError                object.missing          a list has no such object, or several
    ├── ClaimMismatchError          claim.mismatch          the claim is for another VM, or is being given back
    ├── DomainUnknownError          domain.unknown          libvirt has no such domain
    ├── LibvirtFailedError          libvirt.failed          libvirt is missing, does not answer, or said no
    ├── AgentUnreachableError       agent.unreachable       the host agent's socket is not there or silent
    ├── AgentRefusedError           agent.refused           the host agent said no; an instance carries its code
    ├── WaitEndedError              wait.ended              what was waited for did not happen in time
    ├── OperationFailedError        operation.failed        an operation failed or was cancelled
    ├── OutputError                 output.failed           what was asked for could not be written
    ├── ScenarioError               scenario.invalid        a simulator's scenario, trace or setting is wrong
    ├── SimulatorMissingError       simulator.missing       the simulator or what it needs is not installed
    ├── ProbeRefusedError           probe.refused           a GPU cannot be measured; an instance carries its code
    ├── ProgramMissingError         program.missing         a program that was to be started is nowhere
    ├── ProgramUnusableError        program.unusable        a program that was to be started cannot be executed
    ├── BrokerMissingError          broker.missing          the broker's programs are not built or not installed
    ├── BrokerUnreachableError      broker.unreachable      no broker has this run directory, or it is silent
    ├── BrokerAnswerError           broker.answer           what answers there is no broker
    ├── BrokerRefusedError          broker.refused          a broker said no; an instance carries its code
    ├── ContainerRefusedError       container.refused       a container could get around the fence, or is not understood
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpumgr.wire.problem import Problem, Reason


class VgpumgrError(Exception):
    """Base of all. `code` is the frozen name of what happened."""

    code: str


class ControlUnavailableError(VgpumgrError):
    """vgpumgr.ko is not loaded, or the kernel lacks what it needs."""

    code = "control.unavailable"


class ControlProtocolError(VgpumgrError):
    """An answer was truncated, malformed or not the one that was asked for."""

    code = "control.protocol"


class DumpInterruptedError(VgpumgrError):
    """A list could not be read in one consistent piece; try again later."""

    code = "control.interrupted"


class ApiError(VgpumgrError):
    """The API refused a request and stored nothing. `code` is the problem's own, see wire.problem.Code.

    `retry_after_s`: when to ask again at the earliest; 0: it did not say. `repeated`: the answer to an earlier attempt
    was lost, which may have been carried out.
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
        """The causes, when there are several."""
        return self.problem.reasons


class ApiUnreachableError(VgpumgrError):
    """Nobody answers at the API's URL. Whether a request that changes something was carried out is then unknown."""

    code = "api.unreachable"


class ApiAnswerError(VgpumgrError):
    """The answer is not one of ours: another service, a proxy's page, or an API too old or too new."""

    code = "api.answer"


class ArgumentError(VgpumgrError):
    """A name, size, duration or combination of them makes no sense; nothing was sent."""

    code = "argument.invalid"


class SettingsError(VgpumgrError):
    """The configuration, the token or the CA file is missing, unreadable or malformed."""

    code = "settings.invalid"


class MissingError(VgpumgrError):
    """Nothing, or more than one thing, goes by this name."""

    code = "object.missing"


class ClaimMismatchError(VgpumgrError):
    """A slice cannot be attached to this VM."""

    code = "claim.mismatch"


class DomainUnknownError(VgpumgrError):
    """No domain has this name or UUID."""

    code = "domain.unknown"


class LibvirtFailedError(VgpumgrError):
    """libvirt's own words, or why it could not be asked."""

    code = "libvirt.failed"


class AgentUnreachableError(VgpumgrError):
    """This host's agent could not be asked."""

    code = "agent.unreachable"


class AgentRefusedError(VgpumgrError):
    """This host's agent refused; `code` is the one that it gave."""

    code = "agent.refused"

    def __init__(self, reason: str, *, code: str = "agent.refused") -> None:
        self.code = code
        super().__init__(reason)


class WaitEndedError(VgpumgrError):
    """Time is up; what was begun goes on."""

    code = "wait.ended"


class OperationFailedError(VgpumgrError):
    """An operation that was waited for has failed, or was cancelled."""

    code = "operation.failed"


class OutputError(VgpumgrError):
    """Standard output or a file took not all of it."""

    code = "output.failed"


class ScenarioError(VgpumgrError):
    """Nothing was simulated. Its text names file and line, the field, the value and what was expected.

    `problems`: all that was found, a line each; the text is the first of them.
    """

    code = "scenario.invalid"

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(problems[0])


class SimulatorMissingError(VgpumgrError):
    """The `sim` extra or the compiled extension is not there."""

    code = "simulator.missing"


class ProbeRefusedError(VgpumgrError):
    """A GPU was not measured, or not to the end; `code` is one of vgpumgr.gpu.refusals."""

    code = "probe.refused"

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        super().__init__(detail)


class ProgramMissingError(VgpumgrError):
    """No file has this name, or an interpreter that the file names is not there."""

    code = "program.missing"


class ProgramUnusableError(VgpumgrError):
    """The file is there and is no program, or not one that this user may execute."""

    code = "program.unusable"


class BrokerMissingError(VgpumgrError):
    """The programs that `make compute` builds are nowhere."""

    code = "broker.missing"


class BrokerUnreachableError(VgpumgrError):
    """Nobody listens on the broker's socket."""

    code = "broker.unreachable"


class BrokerAnswerError(VgpumgrError):
    """An answer on the broker's socket makes no sense to us."""

    code = "broker.answer"


class BrokerRefusedError(VgpumgrError):
    """A broker refused or would refuse, and changed nothing; `code` is its own. `field`: at fault, "" if it is none."""

    code = "broker.refused"

    def __init__(self, reason: str, *, code: str = "broker.refused", field: str = "") -> None:
        self.code = code
        self.field = field
        super().__init__(reason)


class ContainerRefusedError(VgpumgrError):
    """`vgpumgr-oci` starts nothing: a process of the container might run without the fence."""

    code = "container.refused"


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
