# SPDX-License-Identifier: Apache-2.0
"""Work that takes longer than a request."""

from collections.abc import Iterator
from uuid import UUID

from vgpumgr.client.calls import WAIT_MARGIN_S, Calls, trial
from vgpumgr.client.transport import Match
from vgpumgr.wire.operations import Operation, OperationCancel


class OperationCalls(Calls):
    """Part of Client."""

    def operations(
        self, *, kind: str | None = None, target: str | None = None, state: str | None = None
    ) -> Iterator[Operation]:
        return self._pages("/v1/operations", Operation, kind=kind, target=target, state=state)

    def operation(self, operation_id: UUID, *, wait_s: int = 0) -> Operation:
        """Return an operation. With `wait_s` (at most 60), wait until it is done, but no longer than `wait_s`."""
        return self._api.demand(
            "GET",
            f"/v1/operations/{operation_id}",
            Operation,
            params={"wait_s": wait_s},
            timeout_s=wait_s + WAIT_MARGIN_S,
        )

    def cancel_operation(
        self,
        operation_id: UUID,
        cancel: OperationCancel,
        *,
        if_match: Match | None = None,
        validate_only: bool = False,
    ) -> Operation:
        path, params = f"/v1/operations/{operation_id}:cancel", trial(validate_only)
        return self._post(path, Operation, cancel, if_match=if_match, params=params, repeatable=False)
