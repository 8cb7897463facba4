# SPDX-License-Identifier: Apache-2.0
"""OpenCL programs in real guests: guest's library, window, executor and PoCL, under leases of the kernel's engine."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.chain.guests import BOOT_S
from tests.rig.drawing import COMPUTE, OPENCL_ERROR, Frames, frames, wrong, zoom
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guest, Guests
from tests.rig.slice_executor import SliceExecutor

pytestmark = pytest.mark.skipif(not COMPUTE.exists(), reason="this lab host does not compute: lab run --compute")

POINT = 0.01
TIMESLICE_US, CHUNK_US = 5_000, 5_000  # the latter: VGPU_LENDING_CHUNK_NS of the module
SPANS = 200  # of timeslice and chunk: the shortest stretch of lease time to measure
WINDOW_S = max(3.0, SPANS * (TIMESLICE_US + CHUNK_US) / 1e6)
COMPILED_S = 120.0  # until a program has its first frame, with emulation
MEMORY_MIB = 128
SLICE_MEMORY = "mem64m"  # a child allocates 16 MiB of it at a time
AGAIN_S = 60.0
# With emulation a frame takes some tens of ms and a kernel a few. Enough of them are queued that a busy guest always
# has work.
DRAWING = ("--iterations", "1000", "--rows", "8", "--ahead", "8")
DRAW = " ".join(("mandelbrot", *DRAWING))
# A life lasts from one start of the program to the next. Its end is reported. The next one does not start at once,
# because a program without a device would fill the console.
LIVES = f"""
while :; do
    {DRAW}
    echo "vgpu.ended=$?"
    sleep 1
done
"""
# A kill in the guest ends the first life.
KILLED = f"""
{DRAW} >/tmp/first &
until grep -q '"frame": 3' /tmp/first; do sleep 0.1; done
kill -9 $!
wait $!
status=$?
cat /tmp/first
echo "vgpu.ended=$status"
"""
SIDE_BY_SIDE = f"""
for number in 1 2 3 4; do
    {DRAW} --frames 8 >/tmp/$number || echo "vgpu.failed=$?" &
done
wait
for number in 1 2 3 4; do
    cat /tmp/$number
    echo "vgpu.ended=$number"
done
"""
ENDED = re.compile(r"^vgpu\.ended=(\d+)\s*$", re.MULTILINE)


@pytest.fixture(scope="module")
def right() -> Iterator[Future[Frames]]:
    """Each frame of the zoom, computed by PoCL without vgpumgr, while guests boot."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(zoom, *DRAWING)


@pytest.fixture
def leasing(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        yield gpu


@dataclass(frozen=True)
class Painter:
    """A guest that draws for a tenant, on a slice that has an executor."""

    tenant: str
    uuid: str
    guest: Guest
    executor: SliceExecutor

    def lives(self) -> list[Frames]:
        """The frames that each life of the program has drawn so far; the last life may go on."""
        return [frames(said) for said in ENDED.split(self.guest.console())[::2]]

    def statuses(self) -> list[int]:
        """The exit status of each life that has ended."""
        return [int(status) for status in ENDED.findall(self.guest.console())]

    def drawn(self) -> int:
        """The number of frames of all lives."""
        return sum(len(life) for life in self.lives())

    def wait_drawn(self, more: int, *, timeout_s: float = AGAIN_S) -> None:
        """Wait until it has drawn that many more frames than now."""
        least = self.drawn() + more
        poll(lambda: self.drawn() >= least, timeout_s=timeout_s)

    def wait_life(self, after: int) -> None:
        """Wait until a life after the first `after` has drawn; lives in between may have found no device."""
        poll(lambda: any(len(life) > 1 for life in self.lives()[after:]), timeout_s=COMPILED_S)

    def wrong(self, right: Frames) -> list[Frames]:
        return [found for life in self.lives() if (found := wrong(life, right))]


@pytest.fixture
def painting(leasing: Gpu, guests: Guests) -> Iterator[Callable[..., list[Painter]]]:
    """Starts guests that draw: `painting({"blue": "shell command"})`; returns once all of them have drawn."""
    running: list[SliceExecutor] = []

    def start(commands: dict[str, str], *, wait: bool = True) -> list[Painter]:
        uuids = {tenant: leasing.slice(tenant, memory=SLICE_MEMORY) for tenant in commands}
        painters = []
        for tenant, command in commands.items():
            executor = SliceExecutor(uuids[tenant])
            executor.start()
            running.append(executor)
            guest = guests.start(
                f"guest-{tenant}", slices=(uuids[tenant],), command=command, memory_mib=MEMORY_MIB, keep=True
            )
            painters.append(Painter(tenant, uuids[tenant], guest, executor))
        for painter in painters if wait else []:
            painter.guest.wait_for(r'"record": "frame"', timeout_s=BOOT_S)
        return painters

    yield start
    guests.destroy()
    poll(lambda: not any(one.open for one in leasing.slices().values()))
    for executor in running:
        executor.end()


def test_two_guests_share_three_to_one_and_follow_a_change(
    leasing: Gpu, painting: Callable[..., list[Painter]], right: Future[Frames], figures: Record
) -> None:
    for tenant, weight in (("blue", 300), ("green", 100)):
        leasing.tenant(tenant, weight=weight, timeslice_us=TIMESLICE_US)
    painters = painting(dict.fromkeys(("blue", "green"), LIVES))
    expected = right.result()

    before = {painter.tenant: painter.drawn() for painter in painters}
    window = leasing.measured_over(WINDOW_S)
    rates = {
        painter.tenant: (painter.drawn() - before[painter.tenant]) * 1e9 / window.run_ns[painter.tenant]
        for painter in painters
    }
    figures("3:1, frames of blue in a leased second", rates["blue"], against=rates["green"], unit="of green")
    figures("3:1, lease time of blue by counters", window.share["blue"], against=0.75, unit="of the lease time")
    assert window.share["blue"] == pytest.approx(0.75, abs=POINT)

    leasing.tenant("green", weight=900)
    window = leasing.measured_over(WINDOW_S)
    figures("1:3, lease time of blue by counters", window.share["blue"], against=0.25, unit="of the lease time")
    assert window.share["blue"] == pytest.approx(0.25, abs=POINT)

    for painter in painters:
        assert painter.wrong(expected) == []
        assert painter.statuses() == []


def test_four_programs_of_one_guest_compute_side_by_side(
    leasing: Gpu, painting: Callable[..., list[Painter]], right: Future[Frames]
) -> None:
    leasing.tenant("blue", weight=100, timeslice_us=TIMESLICE_US)
    (painter,) = painting({"blue": SIDE_BY_SIDE}, wait=False)
    painter.guest.wait_for(r"^vgpu.exit=0\s", timeout_s=2 * BOOT_S)
    assert "vgpu.failed" not in painter.guest.console()
    *lives, _ = painter.lives()
    expected = right.result()
    assert lives == [{number: expected[number] for number in range(8)}] * 4
    poll(lambda: painter.executor.children() == [])


@pytest.mark.long
def test_whatever_is_killed_the_neighbour_goes_on_and_its_guest_computes_again(
    leasing: Gpu, guests: Guests, painting: Callable[..., list[Painter]], right: Future[Frames]
) -> None:
    for tenant in ("blue", "green"):
        leasing.tenant(tenant, weight=100, timeslice_us=TIMESLICE_US)
    victim, neighbour = painting({"blue": KILLED + LIVES, "green": LIVES})
    executor, expected = victim.executor, right.result()

    # The program in the guest is killed: its child ends with it, and the next program gets a new child.
    victim.wait_life(after=1)
    poll(lambda: len(executor.children()) == 1)
    neighbour.wait_drawn(2)

    lives = len(victim.lives())
    os.kill(executor.children()[0], signal.SIGKILL)
    victim.wait_life(lives)
    neighbour.wait_drawn(2)

    lives = len(victim.lives())
    os.kill(executor.supervisor(), signal.SIGKILL)
    assert executor.wait() == 1
    executor.start()
    victim.wait_life(lives)
    neighbour.wait_drawn(2)

    lives = len(victim.lives())
    os.kill(executor.pid, signal.SIGKILL)
    executor.wait()
    executor.start()
    victim.wait_life(lives)
    neighbour.wait_drawn(2)
    first, *others = victim.statuses()
    assert (first, set(others)) == (128 + signal.SIGKILL, {OPENCL_ERROR})
    assert victim.wrong(expected) == []

    os.kill(victim.guest.qemu_pid(), signal.SIGKILL)
    poll(lambda: not leasing.slice_stats(victim.uuid).open)
    poll(lambda: executor.children() == [])
    neighbour.wait_drawn(2)
    again = guests.start("guest-again", slices=(victim.uuid,), command=f"{DRAW} --frames 2", memory_mib=MEMORY_MIB)
    again.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    assert wrong(frames(again.console()), expected) == {}

    neighbour.wait_drawn(2)
    assert neighbour.statuses() == []
    assert neighbour.wrong(expected) == []


@pytest.mark.long
def test_without_a_device_a_guests_program_finds_no_opencl_and_says_so(guests: Guests) -> None:
    guest = guests.start("guest-bare", slices=(), command="mandelbrot")
    guest.wait_for(rf"^vgpu.exit={OPENCL_ERROR}\s", timeout_s=BOOT_S)
    assert "CL_PLATFORM_NOT_FOUND_KHR" in guest.console()
