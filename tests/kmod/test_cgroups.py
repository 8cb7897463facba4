# SPDX-License-Identifier: Apache-2.0
"""The processor time that a guest costs the host is charged to its VMM's cgroup."""

import os
import subprocess
import sys
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.gpu import Gpu
from tests.rig.kernel import threads
from tests.rig.leasing import CHECKOUT
from tests.rig.ring import NOP, REG_CONTROL, Guest, descriptor
from tests.rig.vfio import opened

ROUNDS = 300
RESET = 2


@contextmanager
def cgroups() -> Iterator[Path]:
    """The mount point of cgroups version 2, which are mounted if needed."""
    place = Path("/sys/fs/cgroup")
    mounted_here = not (place / "cgroup.procs").exists()
    if mounted_here:
        subprocess.run(["mount", "-t", "cgroup2", "none", place], check=True)
    try:
        yield place
    finally:
        if mounted_here:
            subprocess.run(["umount", place], check=True)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with cgroups() as place:
        made = place / f"vmm-{uuids.uuid4()}"
        made.mkdir()
        yield made
        made.rmdir()


def used_by_our_threads_ns(cgroup: Path) -> tuple[int, int]:
    """Processor time of the module's threads: of those in the cgroup, and of all others."""
    members = (cgroup / "cgroup.procs").read_text().split()
    inside = outside = 0
    for thread in threads("vgpu"):
        used_ns = int(Path(f"/proc/{thread}/schedstat").read_text().split()[0])
        if thread in members:
            inside += used_ns
        else:
            outside += used_ns
    return inside, outside


@contextmanager
def vmm(uuid: str, cgroup: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process in that cgroup that has the slice enabled; see `flood`."""
    command = [sys.executable, "-m", "tests.kmod.test_cgroups", uuid, str(cgroup)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "enabled\n"
        yield process
    assert process.returncode == 0


def flood(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("flood\n")
    process.stdin.flush()
    assert process.stdout.readline() == "flooded\n"


def test_a_worker_is_in_the_cgroup_of_who_opened_its_slice(gpu: Gpu, cgroup: Path) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with vmm(uuid, cgroup):
        (worker,) = threads(f"vgpu-{uuid}")
        assert worker in (cgroup / "cgroup.procs").read_text().split()
    assert threads(f"vgpu-{uuid}") == []


def test_what_a_guests_floods_cost_is_its_vmms(gpu: Gpu, cgroup: Path) -> None:
    """Resets, rings and doorbells while the engine executes nothing, so that nothing else costs time."""
    with gpu.leasing():
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        with vmm(gpu.slice("blue"), cgroup) as process:
            before = used_by_our_threads_ns(cgroup)
            flood(process)
            after = used_by_our_threads_ns(cgroup)
    inside, outside = (later - earlier for earlier, later in zip(before, after, strict=True))
    assert inside >= 0.95 * (inside + outside)


def main(uuid: str, cgroup: str) -> None:
    Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        print("enabled", flush=True)
        for _ in sys.stdin:
            for _ in range(ROUNDS):
                device.set_register(REG_CONTROL, RESET)
                guest.enable(device)
                guest.submit(device, *[descriptor(NOP)] * 8)
            print("flooded", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
