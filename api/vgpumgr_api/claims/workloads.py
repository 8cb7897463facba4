# SPDX-License-Identifier: Apache-2.0
"""Claims for processes and containers of a host, where they differ from claims for VMs.

A GPU serves either VMs or processes, according to its host's settings. The reason is that the host's kernel module
serves VMs, a broker serves processes, and neither knows what the other has allocated. There are no mdev types for
processes, so a claim for processes takes exactly the GPU memory that it asks for. Such a claim competes on its GPU by
itself and belongs to no group.
"""

from uuid import UUID

from vgpumgr.wire.common import BROKER, Mode, Workload
from vgpumgr.wire.fleet import DesiredCard, DesiredSlice
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import SliceCreate, SliceState
from vgpumgr_api.claims.slice_view import View
from vgpumgr_api.errors import Refusal
from vgpumgr_api.tenancy.enforcement import Part, plan_group


def workload_of(backend: str) -> Workload:
    """Returns the workload that a GPU serves."""
    return Workload.PROCESS if backend == BROKER else Workload.VM


def require_sense(request: SliceCreate) -> None:
    """Raises Refusal(FIELD_INVALID) for a claim for processes with members that only VMs can have."""
    if request.workload is not Workload.PROCESS:
        return
    wrong = {
        "vm_uuid": "a claim for processes has no VM; leave it out, or claim for workload vm",
        "reservation": "reservations have places for VMs only; leave it out, or claim for workload vm",
    }
    reasons = tuple(
        Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{name}")
        for name, detail in wrong.items()
        if getattr(request, name) is not None
    )
    if reasons:
        raise Refusal(Code.FIELD_INVALID, reasons[0].detail, reasons=reasons)


def is_for_processes(seen: View) -> bool:
    """Whether a claim is for processes."""
    return bool(seen.slice.workload == Workload.PROCESS.value)


def desired_process(seen: View, card: DesiredCard | None) -> list[DesiredSlice]:
    """Returns the desired state for a claim for processes; an empty list for a claim that was deleted or lost."""
    claim = seen.slice
    if claim.state != SliceState.CLAIMED.value:
        return []
    party: UUID = claim.id
    plan = plan_group({party: Part(permille=seen.permille, strict=claim.mode == Mode.STRICT.value)}, seen.timeslice_us)
    return [
        DesiredSlice(
            id=party,
            gpu=seen.gpu.address,
            card=card,
            tenant=seen.tenant,
            vm_uuid=None,
            mdev_type=claim.mdev_type,
            weight=plan.weight,
            cap_us=plan.cap.us,
            cap_period_us=plan.cap.period_us,
            workload=Workload.PROCESS,
            timeslice_us=plan.timeslice_us,
            mem_bytes=claim.mem_bytes,
            generation=claim.generation,
        )
    ]
