# SPDX-License-Identifier: Apache-2.0
"""GPUs, as their hosts reported them, and the use by claims."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.operations import GpuRehome, Operation
from vgpumgr.wire.resources import Gpu, GpuPatch, HostState
from vgpumgr.wire.selector import Selector, parse_selector
from vgpumgr_api.edge.call import CallDep, Flag, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.fleet import gpus, rehoming

router = APIRouter(prefix="/v1/gpus", tags=["gpus"], route_class=Route)


@router.get("")
def list_gpus(
    call: CallDep,
    page: PageDep,
    host: Name | None = None,
    host_state: Annotated[HostState | None, Query(description="only GPUs of hosts in this state")] = None,
    present: Annotated[Flag | None, Query(description="true: in its host's last report; false: no longer")] = None,
    selector: Selector | None = None,
) -> Page[Gpu]:
    """Lists GPUs by host and address. In `selector`, a host's label counts for its GPUs without a label of that key."""
    labels = parse_selector(selector) if selector else {}
    return call.read(gpus.list_gpus, page, host=host, host_state=host_state, present=present, labels=labels)


@router.get("/{gpu_id}")
def get_gpu(call: CallDep, gpu_id: UUID) -> Gpu:
    """Returns a GPU."""
    gpu = call.read(gpus.get_gpu, gpu_id)
    call.tag(gpu.id, gpu.generation)
    return gpu


@router.patch("/{gpu_id}")
def patch_gpu(call: TrialDep, gpu_id: UUID, patch: GpuPatch, if_match: IfMatch) -> Gpu:
    """Changes labels, and the ratio by which fair slices may overcommit the GPU. Needs If-Match."""
    gpu = call.write(gpus.patch_gpu, gpu_id, patch, if_match=if_match)
    call.tag(gpu.id, gpu.generation)
    return gpu


@router.post(
    "/{gpu_id}:rehome",
    status_code=202,
    responses={200: {"description": "With validate_only: what would be done", "model": Operation}},
)
def rehome_gpu(
    call: TrialDep, gpu_id: UUID, wanted: GpuRehome, if_match: IfMatch, idempotency_key: IdempotencyKey = None
) -> Operation:
    """Moves all claims of an absent GPU to another GPU of its host, or none. Needs If-Match."""
    done = call.write_once(
        idempotency_key,
        lambda session, actor, body: rehoming.rehome_gpu(session, actor, gpu_id, body, if_match=if_match),
        wanted,
        kind=Operation,
    )
    call.located(f"/v1/operations/{done.id}")
    call.tag(done.id, done.generation)
    return done
