# SPDX-License-Identifier: Apache-2.0
"""How a service says no. The routes turn it into a problem document."""

from typing import Any

from vgpumgr.wire.problem import STATUS, Code, Reason


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """A request was refused and nothing was stored: it rolls its transaction back.

    `detail` is one line that says what to do about it. `retry_after_s`: when it may be worth another try. `by`:
    the Actor that it is told, where that is known to nobody else, for the audit.
    """

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        reasons: tuple[Reason, ...] = (),
        limits: dict[str, Any] | None = None,
        retry_after_s: int | None = None,
        by: Any = None,
    ) -> None:
        self.code = code
        self.detail = detail
        self.reasons = reasons
        self.limits = limits or {}
        self.retry_after_s = retry_after_s
        self.by = by
        super().__init__(f"{code}: {detail}")

    @property
    def status(self) -> int:
        """The HTTP status that belongs to the code."""
        return STATUS[self.code]


class ReservedRefusal(Refusal):
    """Reservations are in the way, and nothing else. They may have expired."""
