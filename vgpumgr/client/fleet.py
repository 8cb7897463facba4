# SPDX-License-Identifier: Apache-2.0
"""The host agent's routes. `host`: its id or name."""

from uuid import UUID

from vgpumgr.client.calls import WAIT_MARGIN_S, Calls
from vgpumgr.client.transport import segment
from vgpumgr.wire.fleet import (
    Bind,
    CertificateRequest,
    Desired,
    Enroll,
    Enrolled,
    Heartbeat,
    HeartbeatTaken,
    HostCertificate,
    Report,
    Reported,
)
from vgpumgr.wire.resources import Slice
from vgpumgr.wire.usage import Metered, Readings


class FleetCalls(Calls):
    """Part of Client."""

    def enroll(self, enroll: Enroll) -> Enrolled:
        """Enrol a host. The client's token must be the host's one-time token."""
        return self._post("/v1/enroll", Enrolled, enroll, repeatable=False)

    def renew_certificate(self, host: UUID | str, request: CertificateRequest) -> HostCertificate:
        return self._post(f"/v1/hosts/{segment(host)}/certificate", HostCertificate, request)

    def desired(
        self, host: UUID | str, *, epoch: UUID | None = None, generation: int | None = None, wait_s: int = 30
    ) -> Desired | None:
        """Return the desired state once it differs from (`epoch`, `generation`); None if `wait_s` pass first."""
        return self._api.call(
            "GET",
            f"/v1/hosts/{segment(host)}/desired",
            Desired,
            params={"epoch": None if epoch is None else str(epoch), "generation": generation, "wait_s": wait_s},
            timeout_s=wait_s + WAIT_MARGIN_S,
        )

    def report(self, host: UUID | str, report: Report) -> Reported:
        return self._post(f"/v1/hosts/{segment(host)}/report", Reported, report)

    def heartbeat(self, host: UUID | str, beat: Heartbeat) -> HeartbeatTaken:
        return self._post(f"/v1/hosts/{segment(host)}/heartbeat", HeartbeatTaken, beat)

    def meter(self, host: UUID | str, readings: Readings) -> Metered:
        """Send the counts of a host's meter; return the revision up to which the API has the counts."""
        return self._post(f"/v1/hosts/{segment(host)}/usage", Metered, readings)

    def bind(self, host: UUID | str, slice_id: UUID, bind: Bind) -> Slice:
        return self._post(f"/v1/hosts/{segment(host)}/slices/{slice_id}:bind", Slice, bind)
