# SPDX-License-Identifier: Apache-2.0
"""Claims for processes and containers of a host, where they differ from those for VMs.

A GPU is for one or the other, as its host's settings say. What serves VMs is the host's kernel module, and what serves
processes is a broker; neither knows of what the other has given away. A claim for processes takes of a GPU's memory
what it asks for, since there are no mdev types. It is a party of its own on its GPU, so that it is in no group.
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
    """Returns for which claims a GPU is."""
    return Workload.PROCESS if backend == BROKER else Workload.VM


def require_sense(request: SliceCreate) -> None:
    """Raises Refusal(FIELD_INVALID) for a claim for processes that names what only VMs have."""
    if request.workload is not Workload.PROCESS:
        return
    wrong = {
        "vm_uuid": "a claim for processes is for no VM; leave it out, or claim for workload vm",
        "reservation": "reservations hold places for VMs; leave it out, or claim for workload vm",
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
    """Returns what its host shall have for a claim for processes; nothing for one that was deleted or lost."""
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
