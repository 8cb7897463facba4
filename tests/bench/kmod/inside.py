# SPDX-License-Identifier: Apache-2.0
"""The part of the benchmark inside a lab host, in virtual time: the module, VFIO clients, and counters.

tests/lab/lab run --icount -- python3 -m tests.bench.kmod.inside OUTPUT MODULE...

For a baseline's MODULE (build/bench/kmod/*.ko) only the fairness is measured, for "vgpumgr" everything.
"""

import json
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.kmod.modules import BUILT, OURS
from tests.bench.kmod.workload import (
    BATCHES,
    CHUNK_US,
    EPOCH_NS,
    MAX_CHUNK_NS,
    PREPARED_NS,
    SIZES,
    TIMESLICE_NS,
    URGENT_US,
    Change,
    Member,
    Stay,
    lengths,
    members,
    work,
)
from tests.rig.client import Client, client, slice_option
from tests.rig.gpu import ADDRESS, Gpu, poll, the_gpu
from tests.rig.quiet import quiet_udev
from tests.rig.trace import traced
from tests.rig.traps import trapped
from tests.rig.wakeups import wakeups


def sleep_until(deadline_ns: int) -> None:
    time.sleep(max(0, deadline_ns - time.monotonic_ns()) / 1e9)


def saturator(loads: list[tuple[str, Member]]) -> Client:
    """Start one process that keeps these slices full until it is killed."""
    arguments = ["--json", "--seconds", "600"]
    for uuid, one in loads:
        queue = {"depth": one.depth, "batch": one.depth // 4, "queued_min": 1}
        option = slice_option(uuid, op="delay", delay_ns=one.item_ns, nosplit=True, **queue)
        arguments += ["--slice", option]
    return Client(arguments)


def join(gpu: Gpu, one: Member, weight: int) -> tuple[str, int]:
    """Make a tenant and its slice, without work; return the slice, and the time at which the tenant existed."""
    gpu.tenant(one.name, weight=weight, timeslice_us=TIMESLICE_NS // 1000)
    made_ns = time.monotonic_ns()
    return gpu.slice(one.name), made_ns


def leave(gpu: Gpu, one: Member, uuid: str, user: Client) -> int:
    """End a client after its items, and remove its slice and tenant; return the time."""
    user.end()
    user.wait()
    gpu.sysfs.remove(uuid)
    gpu.control.delete_tenant(ADDRESS, one.name)
    return time.monotonic_ns()


def fairness(gpu: Gpu, size: int) -> dict[str, Any]:
    """Run ten seconds with a leave, a join and a new weight; return the module's tracepoints from the first item on.

    The figures cover the ten seconds.
    """
    played = members(size)
    gpu.set_max_chunk_us(MAX_CHUNK_NS // 1000)
    first = [one for one in played if one.weights[0]]
    leaver, joiner, changing = played[-2], played[-1], played[0]
    slices = {one.name: join(gpu, one, one.weights[0])[0] for one in first}
    clients: list[Client] = []
    try:
        with traced() as trace:
            origin_ns = time.monotonic_ns()
            clients.append(saturator([(slices[one.name], one) for one in first if one is not leaver]))
            leaving = saturator([(slices[leaver.name], leaver)])
            clients.append(leaving)
            for uuid in slices.values():
                gpu.wait_queued(uuid, least=4)
            before = gpu.control.gpu(ADDRESS)
            begun_ns = time.monotonic_ns()
            sleep_until(begun_ns + EPOCH_NS)
            gone_ns = leave(gpu, leaver, slices[leaver.name], leaving)
            sleep_until(begun_ns + 2 * EPOCH_NS - PREPARED_NS)
            joining, made_ns = join(gpu, joiner, joiner.weights[2])
            sleep_until(begun_ns + 2 * EPOCH_NS)
            clients.append(saturator([(joining, joiner)]))
            sleep_until(begun_ns + 3 * EPOCH_NS)
            gpu.tenant(changing.name, weight=changing.weights[3], timeslice_us=TIMESLICE_NS // 1000)
            reweighted_ns = time.monotonic_ns()
            sleep_until(begun_ns + 4 * EPOCH_NS)
            after = gpu.control.gpu(ADDRESS)
    finally:
        for user in clients:
            user.kill()
    gpu.clear()
    stays = [Stay(run.tenant, run.start_ns - origin_ns, run.length_ns) for run in trace.runs]
    left_ns = max(stay.end_ns for stay in stays if stay.name == leaver.name)
    changes = [
        *(Change(time_ns=0, name=one.name, weight=one.weights[0]) for one in first),
        *work(stays, [(ready.tenant, ready.time_ns - origin_ns) for ready in trace.ready]),
        Change(time_ns=left_ns, name=leaver.name, has_work=False),
        Change(time_ns=gone_ns - origin_ns, name=leaver.name, weight=0),
        Change(time_ns=made_ns - origin_ns, name=joiner.name, weight=joiner.weights[2]),
        Change(time_ns=reweighted_ns - origin_ns, name=changing.name, weight=changing.weights[3]),
    ]
    counted = [stay for stay in stays if stay.start_ns >= begun_ns - origin_ns]
    return {
        "longest_run_ns": max(stay.length_ns for stay in counted),
        "runs": len(counted),
        "idle_permille": round(1000 * (after.idle_ns - before.idle_ns) / (after.wall_ns - before.wall_ns)),
        "lengths": lengths(counted),
        "stays": [asdict(stay) for stay in stays],
        "changes": [asdict(change) for change in changes],
    }


def spent_ns(beginning: str) -> int:
    """Return the processor time of kernel threads by a prefix of their names; in virtual time it counts
    instructions.
    """
    total = 0
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if comm.read_text().startswith(beginning):
                total += int((comm.parent / "schedstat").read_text().split()[0])
    return total


def cost(gpu: Gpu, batch: int) -> dict[str, Any]:
    """Run empty items: the cost is the module's own, in the engine's thread and the slice's worker."""
    gpu.tenant("cost", weight=100, timeslice_us=1000)
    uuid = gpu.slice("cost")

    def sample() -> tuple[int, int, int, int, int]:
        stats = gpu.slice_stats(uuid)
        return (stats.items, stats.doorbells, spent_ns("vgpu/"), spent_ns(f"vgpu-{uuid[:8]}"), time.monotonic_ns())

    with gpu.loaded({uuid: {"op": "nop", "batch": batch, "depth": 8 * batch, "queued_min": 0}}) as outcomes:
        before = sample()
        time.sleep(1)
        after = sample()
    items, doorbells, engine_ns, worker_ns, wall_ns = (last - first for last, first in zip(after, before, strict=True))
    report = outcomes[0].report("name", uuid)
    gpu.clear()
    return {
        "engine": round(engine_ns / items),
        "worker": round(worker_ns / items),
        "items_per_s": round(items * 1e9 / wall_ns),
        "doorbells": round(doorbells / items, 4),
        "interrupts": round(report["interrupts"] / report["items"], 4),
    }


def idle(gpu: Gpu) -> dict[str, Any]:
    """Return the wakeups of the module's threads in two seconds in which open slices have nothing to do."""
    gpu.tenant("free", weight=100, timeslice_us=1000)
    gpu.tenant("capped", weight=100, timeslice_us=1000, cap_us=2000, cap_period_us=10000)
    slices = [gpu.slice(tenant) for tenant in ("free", "capped")]
    holders = [Client([uuid, "hold"]) for uuid in slices]
    for uuid in slices:
        poll(lambda uuid=uuid: gpu.slice_stats(uuid).open)  # type: ignore[misc]
    time.sleep(0.5)
    with wakeups() as found:
        time.sleep(2)
    for holder in holders:
        holder.kill()
    gpu.clear()
    return {"wakeups": len(found)}


def priority(gpu: Gpu, band: str) -> dict[str, Any]:
    """Run a 50 us item every 10 ms beside four tenants whose 400 us items cannot be interrupted."""
    gpu.set_max_chunk_us(CHUNK_US)
    load = {}
    for number in range(4):
        gpu.tenant(f"busy{number}", weight=100, timeslice_us=2000)
        load[gpu.slice(f"busy{number}")] = {"op": "delay", "delay_us": CHUNK_US, "nosplit": True}
    settings: dict[str, Any] = {"weight": 100, "timeslice_us": 2000}
    if band == "latency":
        settings |= {"band": band, "reserve_us": 1000, "reserve_period_us": 10000}
    gpu.tenant("urgent", **settings)
    urgent = gpu.slice("urgent")
    with gpu.loaded(load):  # type: ignore[arg-type]
        outcome = client(urgent, "latency", "--delay-us", str(URGENT_US), "--period-us", "10000", "--seconds", "3")
    report = outcome.reports[-1]
    gpu.clear()
    return {"p50_ns": report["p50_ns"], "p99_ns": report["p99_ns"], "max_ns": report["max_ns"]}


def traps(gpu: Gpu, batch: int) -> dict[str, Any]:
    """Return a guest's accesses to the function per item, without those that open, enable and close it."""
    gpu.tenant("traps", weight=100, timeslice_us=1000)
    uuid = gpu.slice("traps")
    found = []
    for batches in (1, 1001):
        with trapped() as counted:
            client(
                uuid, "saturate", "--op", "nop", "--items", str(batches * batch), "--batch", str(batch),
                "--depth", str(8 * batch), "--queued-min", "0",
            )  # fmt: skip
        found.append(counted.reads + counted.writes)
    gpu.clear()
    return {"per_item": round((found[1] - found[0]) / (1000 * batch), 4)}


def parts(gpu: Gpu, module: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and figures of each measurement."""
    for size in SIZES:
        yield f"fairness {size}", fairness(gpu, size)
    if module != OURS:
        return
    for batch in BATCHES:
        yield f"cost {batch}", cost(gpu, batch)
    yield "idle", idle(gpu)
    for band in ("latency", "fair"):
        yield f"priority {band}", priority(gpu, band)
    for batch in BATCHES:  # last, because the counting itself costs instructions
        yield f"traps {batch}", traps(gpu, batch)


def measure(module: str) -> dict[str, Any]:
    """Measure with this module loaded; unload it afterwards."""
    if module != OURS:
        shutil.copy(BUILT / f"{module}.ko", "/lab/vgpumgr.ko")  # the module that lab-insmod loads
    with the_gpu() as gpu, quiet_udev():
        gpu.clear()
        found: dict[str, Any] = {"kernel": platform.release(), "engine": gpu.control.gpu(ADDRESS).engine}
        for name, figures in parts(gpu, module):
            shown = {what: value for what, value in figures.items() if what not in ("stays", "changes")}
            print(f"{module}: {name}: {shown}", flush=True)
            found[name] = figures
    return found


def main(output: str, *modules: str) -> None:
    found = {}
    for module in modules:
        found[module] = measure(module)
        Path(output).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
