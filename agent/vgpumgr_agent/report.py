# SPDX-License-Identifier: Apache-2.0
"""Builds reports for the API: the observed state, never the requested one. Pure."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple
from uuid import UUID

from vgpumgr import __version__
from vgpumgr.wire.common import PERMILLE, ExecutorState, Policy
from vgpumgr.wire.fleet import Report, ReportedExecutor, ReportedGpu, ReportedGroup, ReportedSlice, ReportedType
from vgpumgr_agent import documents, places
from vgpumgr_agent.backends import Observed, ObservedGpu, ObservedGroup, ObservedSlice
from vgpumgr_agent.documents import Kept
from vgpumgr_agent.executions import Standing

REFUSALS_MAX = 100
_ERROR_CHARACTERS, _CARD_CHARACTERS = 200, 80


class SliceError(NamedTuple):
    """Why a slice is not as it should be. `code`: frozen, empty if the error has none."""

    text: str
    code: str = ""


def build(
    *,
    observed: Observed,
    kept: Kept | None,
    others: Sequence[ObservedGpu] = (),
    refusals: Sequence[str] = (),
    errors: Mapping[UUID, SliceError] | None = None,
    executors: Mapping[UUID, Standing] | None = None,
    agent_epoch: int,
    seq: int,
) -> Report:
    """Return a report.

    `kept`: the state on disk before `observed` was taken. So if the report shows a slice as absent, it was absent after
    this state was saved, and stays absent after a restart of the agent. `others`: GPUs that are not shared; `errors`:
    why slices are not in order; `executors`: the states of executors.
    """
    gpus = [*observed.gpus.values(), *(gpu for gpu in others if gpu.address not in observed.gpus)]
    return Report(
        boot_id=observed.boot_id,
        agent_epoch=agent_epoch,
        seq=seq,
        agent_version=__version__,
        desired_epoch=kept.epoch if kept else None,
        desired_generation=kept.generation if kept else 0,
        gpus=[_gpu(gpu) for gpu in gpus],
        groups=[_group(group, observed) for group in observed.groups.values() if group.configured],
        slices=_slices(observed, kept, errors or {}, executors or {}),
        refusals=[text[:500] for text in [*refusals, *(kept.doubts if kept else ())]][:REFUSALS_MAX],
    )


def blind(*, boot_id: UUID, gpus: Sequence[ObservedGpu], refusals: Sequence[str], agent_epoch: int, seq: int) -> Report:
    """Return a report of a host that cannot be observed. It confirms nothing."""
    return Report(
        boot_id=boot_id,
        agent_epoch=agent_epoch,
        seq=seq,
        agent_version=__version__,
        desired_epoch=None,
        desired_generation=0,
        gpus=[_gpu(gpu) for gpu in gpus],
        groups=[],
        slices=[],
        refusals=[text[:500] for text in refusals][:REFUSALS_MAX],
    )


def applied_permille(found: ObservedSlice, observed: Observed) -> int:
    """Return the share that the kernel guarantees to a slice by its weights and caps.

    A group's weight is a permille of the GPU, unless the weights add up to more than 1000. The group's share is divided
    among its slices by weight. The share of slices that do not exist yet is given to no slice. Under a policy other
    than best_effort, all slices get equal shares: the GPU divided by the number of places or of slices, whichever is
    larger.
    """
    group = observed.groups.get((found.gpu, found.tenant))
    if group is None or not group.configured:
        return 0
    gpu = observed.gpus.get(found.gpu)
    if gpu is not None and gpu.policy != Policy.BEST_EFFORT:
        slices = sum(each.gpu == found.gpu for each in observed.slices.values())
        return PERMILLE // max(slices, gpu.places)
    weights = sum(each.weight for key, each in observed.groups.items() if key[0] == found.gpu and each.configured)
    siblings = sum(
        each.weight for each in observed.slices.values() if (each.gpu, each.tenant) == (found.gpu, found.tenant)
    )
    of_gpu = Fraction(group.weight, max(PERMILLE, weights))
    if group.cap_us:
        of_gpu = min(of_gpu, Fraction(group.cap_us, group.cap_period_us))
    share = of_gpu * Fraction(found.weight, max(group.weight, siblings))
    if found.cap_us:
        share = min(share, Fraction(found.cap_us, found.cap_period_us))
    return int(share * PERMILLE)


def _gpu(gpu: ObservedGpu) -> ReportedGpu:
    return ReportedGpu(
        address=gpu.address,
        uuid=gpu.uuid[:_CARD_CHARACTERS],
        serial=gpu.serial[:_CARD_CHARACTERS],
        pci_ids=gpu.pci_ids,
        switch_cost_us=gpu.switch_cost_us,
        engine=gpu.engine,
        backend=gpu.backend,
        mem_bytes=gpu.mem_bytes,
        timeslice_min_us=gpu.timeslice_min_us,
        max_chunk_us=gpu.max_chunk_us,
        types=[ReportedType(id=kind, mem_bytes=mem_bytes) for kind, mem_bytes in gpu.types.items()],
        policy=Policy(gpu.policy),
        places=gpu.places,
        reserve_limit_permille=gpu.reserve_limit_permille,
    )


def _group(group: ObservedGroup, observed: Observed) -> ReportedGroup:
    gpu = observed.gpus.get(group.gpu)
    wall_ns, idle_ns = (gpu.wall_ns, gpu.idle_ns) if gpu else _of_broker(group.gpu, observed)
    return ReportedGroup(
        gpu=group.gpu,
        tenant=group.tenant,
        weight=group.weight,
        timeslice_us=group.timeslice_us,
        cap_us=group.cap_us,
        cap_period_us=group.cap_period_us,
        run_ns=group.run_ns,
        runs=group.runs,
        longest_run_ns=group.longest_run_ns,
        throttled_ns=group.throttled_ns,
        switches=group.switches,
        wall_ns=wall_ns,
        idle_ns=idle_ns,
    )


def _of_broker(gpu: str, observed: Observed) -> tuple[int, int]:
    """Return a broker's age, and the part of this time that no tenant was charged for."""
    broker = observed.brokers.get(gpu)
    wall_ns = broker.wall_ns if broker else 0
    return wall_ns, max(0, wall_ns - sum(each.run_ns for key, each in observed.groups.items() if key[0] == gpu))


def _slices(
    observed: Observed, kept: Kept | None, errors: Mapping[UUID, SliceError], executors: Mapping[UUID, Standing]
) -> list[ReportedSlice]:
    generations = {claim.slice.id: claim.slice.generation for claim in kept.claims} if kept else {}
    generations |= {tombstone.id: tombstone.generation for tombstone in kept.tombstones} if kept else {}
    ours = {uuid for uuid, found in observed.slices.items() if found.recorded} | observed.places.keys()
    said = [
        _slice(uuid, generations.get(uuid, 0), observed, errors.get(uuid, SliceError("")))
        for uuid in sorted(generations.keys() | ours)
    ]
    startable = documents.startable(kept)
    return [
        one.model_copy(update={"startable": one.id in startable, "executor": _executor(executors.get(one.id))})
        for one in said
    ]


def _executor(standing: Standing | None) -> ReportedExecutor:
    if standing is None:
        return ReportedExecutor()
    return ReportedExecutor(
        state=ExecutorState(standing.state),
        restarts=standing.restarts,
        reason=standing.reason[:_ERROR_CHARACTERS],
        pause_s=standing.pause_s,
        memory_used_bytes=standing.memory_used_bytes,
        memory_bytes=standing.memory_bytes,
    )


def _slice(uuid: UUID, generation: int, observed: Observed, error: SliceError) -> ReportedSlice:
    found = observed.slices.get(uuid)
    if found is None and uuid in observed.places:
        place = observed.places[uuid]
        return places.reported(place, observed, generation=generation, error=error.text[:_ERROR_CHARACTERS])
    if found is None:
        return ReportedSlice(
            id=uuid,
            generation=generation,
            present=False,
            open=False,
            vm_uuid=None,
            applied_permille=None,
            run_ns=0,
            items=0,
            error=error.text[:_ERROR_CHARACTERS],
            error_code=error.code,
        )
    if not found.recorded and not error.text:
        error = SliceError(f"made by somebody else; remove it, or run vgpumgr-helper adopt {uuid}")
    return ReportedSlice(
        id=uuid,
        generation=generation,
        present=True,
        open=found.open,
        vm_uuid=found.vm_uuid,
        applied_permille=min(PERMILLE, applied_permille(found, observed)),
        run_ns=found.run_ns,
        items=found.items,
        error=error.text[:_ERROR_CHARACTERS],
        error_code=error.code,
    )
