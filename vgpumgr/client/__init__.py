# SPDX-License-Identifier: Apache-2.0
"""The API as Python calls, for the CLI and the host agent. Each route has a method, typed with the wire models.

Lists are read page by page while they are used. Every method raises ApiError, ApiUnreachableError or ApiAnswerError,
and ArgumentError for an impossible name. Threads may share a client.
"""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from vgpumgr.client.calls import Loose
from vgpumgr.client.fleet import FleetCalls
from vgpumgr.client.hosts import HostCalls
from vgpumgr.client.operations import OperationCalls
from vgpumgr.client.records import RecordCalls
from vgpumgr.client.slices import SliceCalls
from vgpumgr.client.tenants import TenantCalls
from vgpumgr.client.transport import PAUSES_S, Transport
from vgpumgr.client.usage import UsageCalls

if TYPE_CHECKING:
    import httpx2

__all__ = ["Client"]


class Client(TenantCalls, HostCalls, SliceCalls, OperationCalls, RecordCalls, UsageCalls, FleetCalls):
    """Without `token` and `certificate_file`, only `versions` and `health` work. `timeout_s`: limit of one attempt.

    `certificate_file`: PEM, key and certificate of a host's agent, shown to an API behind ``https://``. SettingsError
    for unusable arguments, and for a token over ``http://`` to another machine.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca_file: str | None = None,
        timeout_s: float = 30.0,
        *,
        certificate_file: str | None = None,
        transport: "httpx2.BaseTransport | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        super().__init__(
            Transport(
                url,
                token,
                ca_file=ca_file,
                certificate_file=certificate_file,
                timeout_s=timeout_s,
                transport=transport,
                sleep=sleep,
                pauses_s=pauses_s,
            )
        )

    def __repr__(self) -> str:
        return f"Client({self._api.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The API's URL."""
        return self._api.url

    def close(self) -> None:
        """Close the connections."""
        self._api.close()

    def versions(self) -> dict[str, Any]:
        return self._get("/", Loose).model_dump()

    def openapi(self) -> dict[str, Any]:
        """Return the API's OpenAPI document."""
        return self._get("/openapi.json", Loose).model_dump()

    def health(self) -> dict[str, Any]:
        """Check the API. ApiError or ApiUnreachableError if it has no database."""
        return self._get("/v1/health", Loose).model_dump()

    def liveness(self) -> dict[str, Any]:
        """Check that the API's process answers, whatever the state of its database."""
        return self._get("/v1/health/live", Loose).model_dump()
