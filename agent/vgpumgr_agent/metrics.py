# SPDX-License-Identifier: Apache-2.0
"""Metrics of this host for Prometheus: a file for the node exporter's textfile collector.

With a file, the agent needs no listening socket for metrics. The file is replaced atomically. Its age shows whether the
agent is working.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from vgpumgr import __version__
from vgpumgr.control.listed import Unusable
from vgpumgr_agent.backends import Observed, ObservedPlace, ObservedSlice
from vgpumgr_agent.executions import ABSENT, RUNNING, Standing
from vgpumgr_agent.reconcile import Orphans

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
Family = tuple[str, str, str, Sequence[Sample]]
"""Kind, name, help text, samples."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The agent at one moment. `observed` None: the host cannot be observed. `told`: see `Reporter.counts`.

    `executors`: the state of each slice's executor. `contact_s`: see `Store.contact_s`. `certificate_s`: the
    certificate's age, or None if there is no certificate or its age is unknown.
    """

    observed: Observed | None
    orphans: Orphans
    unusable: Sequence[Unusable] = ()
    problems: int
    unkept: int = 0
    copied: bool = False
    api_reachable: bool
    contact_s: float | None
    certificate_s: float | None
    executors: Mapping[UUID, Standing] = field(default_factory=dict)
    told: Mapping[tuple[str, str], int]
    at_s: float


def write(path: Path, text: str) -> None:
    """Replace the file, readable for all. Raises OSError."""
    aside = path.with_name(f".{path.name}.new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
    aside.rename(path)


def text(state: State) -> str:
    """Return all metrics in Prometheus' format."""
    families = [*_agent(state), *(_host(state.observed) if state.observed is not None else ())]
    families += _executors(state.executors)
    return "".join(_family(*family) for family in families)


def _agent(state: State) -> Iterable[Family]:
    yield "gauge", "vgpumgr_agent_info", "Always 1.", [({"version": __version__}, 1)]
    yield (
        "gauge",
        "vgpumgr_agent_reconciled_timestamp_seconds",
        "When the host was last reconciled.",
        [({}, state.at_s)],
    )
    yield "gauge", "vgpumgr_agent_kernel_up", "Whether the host could be observed.", [({}, state.observed is not None)]
    yield "gauge", "vgpumgr_agent_api_up", "Whether the API answers.", [({}, state.api_reachable)]
    if state.contact_s is not None:
        yield (
            "gauge",
            "vgpumgr_agent_api_answer_age_seconds",
            "Time since the API last sent the desired state.",
            [({}, state.contact_s)],
        )
    if state.certificate_s is not None:
        yield (
            "gauge",
            "vgpumgr_agent_certificate_age_seconds",
            "Age of the host's certificate.",
            [({}, state.certificate_s)],
        )
    told = [({"kind": kind, "result": result}, float(count)) for (kind, result), count in sorted(state.told.items())]
    yield "counter", "vgpumgr_agent_told_total", "Reports and heartbeats, by result.", told
    yield "gauge", "vgpumgr_agent_problems", "Logged problems that still exist.", [({}, state.problems)]
    yield "gauge", "vgpumgr_agent_copied", "Whether the agent's state belongs to another machine.", [({}, state.copied)]
    unkept = "How many of desired state and usage cannot be written to disk."
    yield "gauge", "vgpumgr_agent_unkept", unkept, [({}, state.unkept)]
    unusable = [({"gpu": found.gpu, "code": str(found.code)}, 1.0) for found in state.unusable]
    yield "gauge", "vgpumgr_agent_gpu_unusable", "Always 1: a listed GPU cannot be shared.", unusable
    orphans = {"slice": len(state.orphans.slices), "group": len(state.orphans.groups)}
    yield (
        "gauge",
        "vgpumgr_agent_orphans",
        "Devices and groups without a claim.",
        [({"kind": kind}, count) for kind, count in orphans.items()],
    )


def _host(observed: Observed) -> Iterable[Family]:
    slices = {"open": 0, "idle": 0, "removing": len(observed.removing)}
    for uuid, found in observed.slices.items():
        if uuid not in observed.removing:
            slices["open" if found.open else "idle"] += 1
    yield (
        "gauge",
        "vgpumgr_agent_slices",
        "Devices: open by a VM, idle, or being removed.",
        [({"state": state}, count) for state, count in slices.items()],
    )
    yield from _gpus(observed)
    yield from _groups(observed)
    yield from _slices(observed)
    yield from _brokers(observed)


def _gpus(observed: Observed) -> Iterable[Family]:
    gpus = [({"gpu": address}, gpu) for address, gpu in sorted(observed.gpus.items())]
    for name, what in (
        ("wall", "Time since the GPU was bound."),
        ("idle", "The part of it in which no group had the engine."),
    ):
        samples = [(labels, getattr(gpu, f"{name}_ns") / 1e9) for labels, gpu in gpus]
        yield "counter", f"vgpumgr_gpu_{name}_seconds_total", what, samples


def _groups(observed: Observed) -> Iterable[Family]:
    groups = [({"gpu": gpu, "tenant": tenant}, group) for (gpu, tenant), group in sorted(observed.groups.items())]
    for name, what in (
        ("run", "Engine time of a tenant's group."),
        ("throttled", "Time in which the group's cap had run out."),
    ):
        samples = [(labels, getattr(group, f"{name}_ns") / 1e9) for labels, group in groups]
        yield "counter", f"vgpumgr_group_{name}_seconds_total", what, samples
    yield (
        "counter",
        "vgpumgr_group_runs_total",
        "Runs of the group.",
        [(labels, group.runs) for labels, group in groups],
    )
    owed = [(labels, group.lag_ns / 1e9) for labels, group in groups]
    yield "gauge", "vgpumgr_group_lag_seconds", "Engine time owed to the group; negative in debt.", owed
    yield "gauge", "vgpumgr_group_weight", "Weight of the group.", [(labels, group.weight) for labels, group in groups]


def _slices(observed: Observed) -> Iterable[Family]:
    """Yield the metric families about slices. Only slice_info names the owner, so the rest continue when it changes.

    The place of a claim for processes is shown as a slice, too, with the figures that its broker reports.
    """
    slices = [({"slice": str(uuid)}, found) for uuid, found in sorted(observed.slices.items())]
    # A broker that does not answer has no figures. 0 would look like a restart of the counters.
    served = {uuid: place for uuid, place in observed.places.items() if place.served}
    places = [({"slice": str(uuid)}, place) for uuid, place in sorted(served.items())]
    named = [
        ({**labels, "vm_uuid": str(found.vm_uuid or ""), "tenant": found.tenant, "gpu": found.gpu}, 1.0)
        for labels, found in slices
    ]
    named += [
        ({**labels, "vm_uuid": "", "tenant": place.terms.tenant, "gpu": place.gpu}, 1.0)
        for labels, place in places
        if place.terms is not None
    ]
    yield "gauge", "vgpumgr_slice_info", "Always 1.", named
    for kind, name, what, value in _OF_A_SLICE:
        samples = [(labels, value(found)) for labels, found in slices]
        if (of_place := _OF_A_PLACE.get(name)) is not None:
            samples += [(labels, of_place(place)) for labels, place in places]
        yield kind, f"vgpumgr_slice_{name}", what, samples
    programs = [(labels, float(place.programs)) for labels, place in places]
    yield "gauge", "vgpumgr_slice_programs", "Programs of a claim for processes.", programs


def _brokers(observed: Observed) -> Iterable[Family]:
    brokers = [({"gpu": gpu}, broker) for gpu, broker in sorted(observed.brokers.items())]
    up = [(labels, float(broker.running)) for labels, broker in brokers]
    yield "gauge", "vgpumgr_broker_up", "Whether the broker of a GPU with claims for processes runs.", up
    started = [(labels, broker.started_ns / 1e9) for labels, broker in brokers if broker.running]
    yield "gauge", "vgpumgr_broker_started_seconds", "When the broker started, since the host's boot.", started


def _executors(executors: Mapping[UUID, Standing]) -> Iterable[Family]:
    """Yield the families about slices that need an executor."""
    there = [({"slice": str(uuid)}, each) for uuid, each in sorted(executors.items()) if each.state != ABSENT]
    up = [(labels, float(each.state == RUNNING)) for labels, each in there]
    yield "gauge", "vgpumgr_slice_executor_up", "Whether the slice's executor runs.", up
    restarts = [(labels, float(each.restarts)) for labels, each in there]
    yield "counter", "vgpumgr_slice_executor_restarts_total", "How often the slice's executor was restarted.", restarts
    counted = [(labels, each) for labels, each in there if each.memory_bytes]
    used = [(labels, float(each.memory_used_bytes)) for labels, each in counted]
    yield (
        "gauge",
        "vgpumgr_slice_accelerator_memory_used_bytes",
        "Accelerator memory that the slice's programs use.",
        used,
    )
    most = [(labels, float(each.memory_bytes)) for labels, each in counted]
    yield (
        "gauge",
        "vgpumgr_slice_accelerator_memory_bytes",
        "Accelerator memory that the slice's programs may use.",
        most,
    )


_OF_A_SLICE: Sequence[tuple[str, str, str, Callable[[ObservedSlice], float]]] = (
    ("gauge", "open", "Whether a VM has the device open.", lambda found: found.open),
    ("gauge", "memory_bytes", "Device memory of the slice.", lambda found: found.memory_bytes),
    ("counter", "run_seconds_total", "Engine time charged to the slice.", lambda found: found.run_ns / 1e9),
    (
        "counter",
        "ghost_seconds_total",
        "Of it, time that the engine idled in its turns.",
        lambda found: found.ghost_ns / 1e9,
    ),
    ("counter", "items_total", "Answered items.", lambda found: found.items),
    ("gauge", "queued_items", "Submitted items that are not answered yet.", lambda found: found.queued),
    ("counter", "dma_bytes_total", "Bytes read from and written to guest memory.", lambda found: found.dma_bytes),
    ("gauge", "throttled", "Whether the slice's own cap has run out.", lambda found: found.throttled),
    (
        "gauge",
        "error",
        "Why the slice was stopped, a number of enum vgpu_error; 0 if it was not.",
        lambda found: found.error,
    ),
    ("counter", "errors_total", "How often the slice was stopped.", lambda found: found.errors),
)

_OF_A_PLACE: Mapping[str, Callable[[ObservedPlace], float]] = {
    "open": lambda place: place.programs > 0,
    "run_seconds_total": lambda place: place.run_ns / 1e9,
}


def _family(kind: str, name: str, what: str, samples: Sequence[Sample]) -> str:
    lines = [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *(_sample(name, *sample) for sample in samples)]
    return "".join(f"{line}\n" for line in lines)


def _sample(name: str, labels: Labels, value: float) -> str:
    said = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = "+Inf" if value == math.inf else repr(float(value))
    return f"{name}{{{said}}} {number}" if said else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
