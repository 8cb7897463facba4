# SPDX-License-Identifier: Apache-2.0
"""Collects the state of this host from the kernel and our records into one answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from vgpumgr.control import pci
from vgpumgr.control.model import Gpu, MdevType, Slice, Tenant
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import NotFoundError, UnknownGpuError
from vgpumgr_agent.helper.records import Records

_NEW_PERMIT_S = 1
"""Reported for a slice that was created after permits were read: it is about to be permitted."""

_MEMORY = re.compile(r"\bmemory_bytes=(\d+)\b")
_GPU = (
    "name",
    "engine",
    "attach",
    "timeslice_min_us",
    "max_chunk_us",
    "wall_ns",
    "idle_ns",
    "policy",
    "places",
    "reserve_limit_permille",
)
_SETTINGS = ("gpu", "weight", "cap_us", "cap_period_us", "run_ns")
_GROUP = (
    *_SETTINGS,
    "name",
    "configured",
    "slices",
    "timeslice_us",
    "mode",
    "band",
    "reserve_us",
    "reserve_period_us",
    "runs",
    "longest_run_ns",
    "throttled_ns",
    "switches",
    "generation",
    "latency_ns",
    "lag_ns",
    "id",
)
_SLICE = (
    *_SETTINGS,
    "uuid",
    "tenant",
    "open",
    "scheduled",
    "memory_bytes",
    "items",
    "queued",
    "dma_bytes",
    "error",
    "errors",
    "ghost_ns",
    "throttled",
)


class Readable(Protocol):
    """The listing methods of `vgpumgr.control.netlink.Control`."""

    def gpus(self) -> list[Gpu]: ...
    def tenants(self, gpu: str | None = None) -> list[Tenant]: ...
    def slices(self, gpu: str | None = None) -> list[Slice]: ...


def observe(
    sysfs: Sysfs,
    control: Readable,
    records: Records,
    *,
    removing: Sequence[str],
    executors: Callable[[], Sequence[dict[str, Any]]],
    brokers: Callable[[], Sequence[dict[str, Any]]],
) -> dict[str, Any]:
    """Return boot id, machine, GPUs, groups, slices, records, executors, brokers. Raises VgpumgrError.

    Permits are read before the kernel's list of slices. So if a permit is missing, it has expired, or the list shows
    its slice as open. Executors are read last, because a slice and its executor may be created meanwhile.
    """
    permits: dict[str, int] = {}
    types: dict[str, str] = {}
    for address in sysfs.gpus():
        for uuid in sysfs.slices(address):
            try:
                permits[uuid] = sysfs.permit_s(uuid)
                types[uuid] = sysfs.slice_type(uuid)
            except NotFoundError:  # the slice has gone meanwhile
                permits.pop(uuid, None)
    answer: dict[str, Any] = {
        "boot_id": sysfs.boot_id(),
        "machine": sysfs.machine(),
        "gpus": [_gpu(sysfs, gpu) for gpu in control.gpus()],
        "groups": [_members(group, _GROUP) for group in control.tenants()],
        "slices": [
            {
                **_members(found, _SLICE),
                "permit_s": permits.get(found.uuid, _NEW_PERMIT_S),
                "mdev_type": types.get(found.uuid, ""),
            }
            for found in control.slices()
        ],
        "records": [asdict(record) for record in records.all()],
        "removing": list(removing),
    }
    return {**answer, "executors": executors(), "brokers": brokers()}


def observe_without_module(sysfs: Sysfs, *, brokers: Callable[[], Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Return the answer of `observe` for a host without our module, with GPUs for processes only and no devices."""
    nothing: dict[str, Any] = dict.fromkeys(("gpus", "groups", "slices", "records", "removing", "executors"), ())
    return {"boot_id": sysfs.boot_id(), "machine": sysfs.machine(), **nothing, "brokers": brokers()}


def _gpu(sysfs: Sysfs, gpu: Gpu) -> dict[str, Any]:
    return {
        **_members(gpu, _GPU),
        "pci_ids": pci.ids(sysfs.paths.pci_device(gpu.name)),
        "serial": _serial(sysfs, gpu.name),
        "mem_bytes": gpu.memory_total_bytes,
        "types": [
            {"id": kind.id, "mem_bytes": mem} for kind in _types(sysfs, gpu.name) if (mem := _memory_bytes(kind))
        ],
    }


def _types(sysfs: Sysfs, gpu: str) -> list[MdevType]:
    try:
        return sysfs.types(gpu)
    except UnknownGpuError:  # the GPU is being bound or unbound
        return []


def _serial(sysfs: Sysfs, gpu: str) -> str:
    try:
        return sysfs.read_gpu(gpu, "serial")
    except NotFoundError:  # the module is an older one, or has just lost the GPU
        return ""


def _memory_bytes(kind: MdevType) -> int:
    found = _MEMORY.search(kind.description)
    return int(found.group(1)) if found else 0


def _members(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
