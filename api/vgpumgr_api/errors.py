# SPDX-License-Identifier: Apache-2.0
"""How a service refuses a request. The routes convert a refusal to a problem document."""

from typing import Any

from vgpumgr.wire.problem import STATUS, Code, Reason


class Refusal(Exception):  # noqa: N818  # it is an answer, not a fault
    """A request was refused and nothing was stored: raising this rolls the transaction back.

    `detail` is one line that says what to do. `retry_after_s`: when a retry may succeed. `by`: the refused Actor for
    the audit, where the caller does not know the actor.
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
        """The HTTP status of the code."""
        return STATUS[self.code]


class ReservedRefusal(Refusal):
    """Only reservations prevented the request. They may have expired."""
