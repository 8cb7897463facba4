# SPDX-License-Identifier: Apache-2.0
"""The routes of hosts' agents. `host` in a path is the host's UUID or its name."""

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from vgpumgr.wire.common import COUNTER_MAX, HostRef
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
from vgpumgr_api.actors import require_own
from vgpumgr_api.auth import certificates
from vgpumgr_api.edge.call import PEER, Call, CallDep, authenticate, database_of, heartbeats_of, source_of, watch_of
from vgpumgr_api.edge.headers import bearer, field_refusal, refuse_forwarded
from vgpumgr_api.edge.strict import ConfirmedRoute, OneTimeRoute, Route
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import agents
from vgpumgr_api.fleet.heartbeats import source_of as heartbeat_source
from vgpumgr_api.usage import metering

if TYPE_CHECKING:
    from vgpumgr_api.auth.agent_ca import AgentCa, Peer

WAIT_S_MAX = 60

enroll_router = APIRouter(tags=["fleet"], route_class=OneTimeRoute)
router = APIRouter(prefix="/v1/hosts/{host}", tags=["fleet"], route_class=Route)
heartbeat_router = APIRouter(prefix="/v1/hosts/{host}", tags=["fleet"], route_class=ConfirmedRoute)


@enroll_router.post("/v1/enroll")
def enroll(request: Request, wanted: Enroll) -> Enrolled:
    """Exchanges a host's one-time token, sent as the bearer token, for its own token or certificate."""
    request_id: str = request.state.request_id
    secret = bearer(request.headers)
    source = source_of(request)
    ca: AgentCa | None = request.app.state.agent_ca
    if ca is not None:
        refuse_forwarded(request.headers)
    return database_of(request).run(
        lambda session: agents.enroll(session, secret, wanted, request_id=request_id, source=source, ca=ca)
    )


@router.get("/desired", responses={204: {"description": "The document has not changed within `wait_s`"}})
async def get_desired(
    call: CallDep,
    host: HostRef,
    epoch: Annotated[UUID | None, Query(description="`epoch` of the document that the agent has")] = None,
    generation: Annotated[int | None, Query(ge=0, le=COUNTER_MAX, description="`generation` of that document")] = None,
    wait_s: Annotated[int, Query(ge=0, le=WAIT_S_MAX, description="seconds to wait for a newer document")] = 0,
) -> Desired:
    """Returns the host's complete desired state, or 204 if it is still the document of `epoch` and `generation`."""
    if epoch is not None and generation is not None:
        seen = (epoch, generation)
        async with call.turn():
            current = await run_in_threadpool(call.read, agents.desired_generation, host)
        own = call.actor.host_id  # `desired_generation` has checked that it is set
        if current == seen and own and not await watch_of(call.request).changed(own, seen, wait_s):
            return Response(status_code=204)  # type: ignore[return-value]  # FastAPI passes a Response on
    elif epoch is not None or generation is not None:
        raise field_refusal("query.epoch", "epoch and generation belong together; send both or neither")
    async with call.turn():
        return await run_in_threadpool(_desired, call, host)


def _desired(call: Call, host: str) -> Desired:
    """Authenticates again, because the token may have been revoked during the wait."""
    actor = authenticate(call.request)
    lease_s: int = call.request.app.state.lease_s
    return Call(call.request, call.response, actor).read(agents.desired, host, lease_s=lease_s)


@router.post("/certificate")
def renew_certificate(call: CallDep, host: HostRef, wanted: CertificateRequest) -> HostCertificate:
    """Issues a certificate for a new key of the agent, which shows its current certificate or token."""
    return call.write(certificates.renew, host, wanted, ca=call.request.app.state.agent_ca)


@router.post("/report")
def report(call: CallDep, host: HostRef, said: Report) -> Reported:
    """Takes a report of what the host has. A report that is not newer than the last is dropped.

    If two running machines have the identity of this host, the second one's reports are refused.
    """
    answer = call.write(agents.report, host, said)
    if isinstance(answer, Refusal):  # raised after the commit, so that the record of the second boot is kept
        raise answer
    return answer.model_copy(update={"renew_within_s": _renew_within_s(call)})


@heartbeat_router.post("/heartbeat")
async def heartbeat(call: CallDep, host: HostRef, beat: Heartbeat) -> HeartbeatTaken:
    """Reports that the host is alive and unchanged since its last report. Costs far less than a report."""
    own = require_own(call.actor, host)
    accepted = await heartbeats_of(call.request).say(heartbeat_source(call.actor, own), beat)
    if not accepted:  # if the credential was revoked, the full lookup raises the refusal for that
        await run_in_threadpool(authenticate, call.request)
    return HeartbeatTaken(accepted=accepted, renew_within_s=_renew_within_s(call))


def _renew_within_s(call: Call) -> int | None:
    ca: AgentCa | None = call.request.app.state.agent_ca
    peer: Peer | None = getattr(call.request.state, PEER, None)
    former = call.actor.certified and ca is not None and peer is not None and ca.is_former(peer)
    return ca.renew_within_s if ca is not None and former else None


@router.post("/usage")
def meter(call: CallDep, host: HostRef, said: Readings) -> Metered:
    """Books what the host's meter counted since the last time. Repeating it books nothing twice."""
    return call.write(metering.meter, host, said)


@router.post("/slices/{slice_id}:bind")
def bind(call: CallDep, host: HostRef, slice_id: UUID, wanted: Bind) -> Slice:
    """Binds a slice that was claimed without a VM to the VM that starts with it."""
    return call.write(agents.bind, host, slice_id, wanted)
