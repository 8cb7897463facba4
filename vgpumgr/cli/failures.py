# SPDX-License-Identifier: Apache-2.0
"""How a failure is reported: one line on standard error, and an exit status for its kind."""

import json
from collections.abc import Collection
from enum import IntEnum

from vgpumgr import errors
from vgpumgr.cli.option_names import in_options


class Status(IntEnum):
    """Exit statuses. Frozen: scripts branch on them."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    DENIED = 5
    NO_CAPACITY = 6
    UNREACHABLE = 7
    WARNINGS = 8  # `host doctor` warns, `host probe-gpu` is inconclusive, or `simulate` misses a target
    PROGRAM_UNUSABLE = 126  # this status and the next: of `run`, as in env(1) and shells
    PROGRAM_MISSING = 127
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_BY_KIND: dict[type[errors.VgpumgrError], Status] = {
    errors.ApiUnreachableError: Status.UNREACHABLE,
    errors.ArgumentError: Status.USAGE,
    errors.SettingsError: Status.USAGE,
    errors.ScenarioError: Status.USAGE,
    errors.MissingError: Status.NOT_FOUND,
    errors.DomainUnknownError: Status.NOT_FOUND,
    errors.ClaimMismatchError: Status.CONFLICT,
    errors.AgentRefusedError: Status.DENIED,
    errors.BrokerUnreachableError: Status.UNREACHABLE,
    errors.ProgramMissingError: Status.PROGRAM_MISSING,
    errors.ProgramUnusableError: Status.PROGRAM_UNUSABLE,
}

_BY_CODE = {
    "auth.required": Status.DENIED,
    "auth.invalid": Status.DENIED,
    "auth.expired": Status.DENIED,
    "permission.denied": Status.DENIED,
    "host.fenced": Status.DENIED,
    "quota.exceeded": Status.DENIED,
    "quota.forbidden": Status.DENIED,
    "capacity.none": Status.NO_CAPACITY,
    "object.unknown": Status.NOT_FOUND,
    "usage.expired": Status.NOT_FOUND,
    "object.exists": Status.CONFLICT,
    "object.in_use": Status.CONFLICT,
    "host.online": Status.CONFLICT,
    "host.draining": Status.CONFLICT,
    "host.second_boot": Status.CONFLICT,
    "gpu.present": Status.CONFLICT,
    "generation.stale": Status.CONFLICT,
    "ca.absent": Status.CONFLICT,
    "reservation.used": Status.CONFLICT,
    "slice.bound": Status.CONFLICT,
    "slice.releasing": Status.CONFLICT,
    "slice.moving": Status.CONFLICT,
    "slice.moved": Status.CONFLICT,
    "operation.done": Status.CONFLICT,
    "idempotency.mismatch": Status.CONFLICT,
    "watch.expired": Status.CONFLICT,
    "field.invalid": Status.USAGE,
    "rate.exceeded": Status.UNREACHABLE,
    "issuer.unreachable": Status.UNREACHABLE,
    "database.busy": Status.UNREACHABLE,
    "database.unusable": Status.UNREACHABLE,
    "database.outdated": Status.UNREACHABLE,
    "api.stopping": Status.UNREACHABLE,
    "api.full": Status.UNREACHABLE,
    "request.timeout": Status.UNREACHABLE,
    # Errors of `host probe-gpu`.
    "probe.gpu_unknown": Status.NOT_FOUND,
    "probe.busy": Status.CONFLICT,
    "probe.not_permitted": Status.DENIED,
    # Errors of a broker.
    "broker.running": Status.CONFLICT,
    "broker.stopping": Status.UNREACHABLE,
    # Answers of an API that this CLI is not compatible with.
    "route.unknown": Status.ERROR,
    "method.not_allowed": Status.ERROR,
    "body.invalid": Status.ERROR,
    "body.too_large": Status.ERROR,
    "media_type.unsupported": Status.ERROR,
    "generation.required": Status.ERROR,
    "internal": Status.ERROR,
}

# For codes that only a newer API has.
_BY_HTTP = {
    401: Status.DENIED,
    403: Status.DENIED,
    404: Status.NOT_FOUND,
    408: Status.UNREACHABLE,
    409: Status.CONFLICT,
    412: Status.CONFLICT,
    429: Status.UNREACHABLE,
    503: Status.UNREACHABLE,
}


def status(error: errors.VgpumgrError) -> Status:
    """Return the exit status of an error."""
    if isinstance(error, errors.ApiError):
        return _BY_CODE.get(error.code, _BY_HTTP.get(error.status, Status.ERROR))
    if isinstance(error, errors.ProbeRefusedError | errors.BrokerRefusedError):
        return _BY_CODE.get(error.code, Status.ERROR)
    return _BY_KIND.get(type(error), Status.ERROR)


def printable(text: str) -> str:
    """Return `text` on one line, unprintable characters escaped, because a terminal would obey untrusted ones."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


def lines(error: errors.VgpumgrError, *, takes: Collection[str] = ()) -> list[str]:
    """Return the lines to print for people: what happened and what to do next, then the reasons.

    `takes`: the command's options. A member that has one of these options is named by the option.
    """
    shown = [f"{error.code}: {error}"]
    if isinstance(error, errors.ApiError):
        for reason in error.reasons:
            field = f"{reason.field}: " if reason.field else ""
            if str(error) == reason.detail or str(error).endswith(f"{field}{reason.detail}"):  # in the first line
                continue
            times = "" if reason.count is None else f" ({reason.count} GPU{'' if reason.count == 1 else 's'})"
            shown.append(f"{reason.code}: {field}{reason.detail}{times}")
        shown = [in_options(error, line, takes) for line in shown]
    elif isinstance(error, errors.ScenarioError):
        shown += error.problems[1:]
    first, *more = map(printable, shown)
    return [f"vgpumgr: {first}", *(f"  {line}" for line in more)]


def document(error: errors.VgpumgrError) -> str:
    """Return the problem as JSON: the API's document, or a document of the same form without an HTTP status."""
    if isinstance(error, errors.ApiError):
        content = error.problem.model_dump(mode="json")
    else:
        content = {"type": "about:blank", "title": "Failed", "code": error.code, "detail": str(error), "reasons": []}
    return json.dumps(content, indent=2)
