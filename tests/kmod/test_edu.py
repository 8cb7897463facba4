# SPDX-License-Identifier: Apache-2.0
"""The engine `edu`: jobs of a real PCI device that cannot be split or stopped. test_edu_wedged.py has jobs that never
end."""

import errno
import math
import os
import re
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig.client import Client, Outcome, client
from tests.rig.edu import (
    DEVICE,
    REG_FACT,
    TIMEOUT_MS,
    config_bit,
    engine,
    raise_interrupt,
    rebind,
    result,
    saved,
    state,
    write_register,
)
from tests.rig.gpu import ADDRESS, Gpu, Load, poll, unload_module
from tests.rig.kernel import DEBUG, kernel_log, log_grows
from tests.rig.migration import Header, restore
from tests.rig.priority import executed
from tests.rig.ring import FACT, NOP, REG_FACT_PS, REG_STATUS, descriptor
from tests.rig.trace import calls_of, traced_runs
from tests.rig.vfio import Device, opened
from vgpumgr.control.netlink import Control
from vgpumgr.errors import BusyError, InvalidFieldError, NotFoundError, UnknownGpuError

PCI_CAP_ID_MSI, PCI_MSI_FLAGS, PCI_MSI_ENABLE = 5, 2, 1
NOTICE_NS = 50_000  # kmod/engine/engine.h: the time in which the thread must notice the end
CLOCK_NS = 1000  # of the tracer's times
NOWHERE = "0000:00:1f.7"
NO_SLICE = "c0ffee00-0000-4000-8000-00000000ffff"


def n_for(uuid: str, ns: int) -> int:
    """The factorial that takes about this long."""
    return ns * 1000 // int(client(uuid, "info").reports[-1]["fact_ps"])


def msi_flags() -> int:
    """The offset of the MSI flags in configuration space."""
    config = (DEVICE / "config").read_bytes()
    at = config[0x34]
    while at and config[at] != PCI_CAP_ID_MSI:
        at = config[at + 1]
    assert at
    return at + PCI_MSI_FLAGS


# ---- which engine


def test_an_engine_is_chosen_while_nobody_uses_the_gpu(gpu: Gpu) -> None:
    assert gpu.sysfs.read_gpu(ADDRESS, "engines") == "soft edu lease"
    with pytest.raises(InvalidFieldError):
        gpu.sysfs.write_gpu(ADDRESS, "engine", "warp")
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    with pytest.raises(BusyError):
        gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    gpu.clear()
    gpu.slice()
    with pytest.raises(BusyError):
        gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    gpu.clear()
    assert engine(gpu) == "soft"
    for name in ("edu", "edu", "soft", "edu"):
        gpu.sysfs.write_gpu(ADDRESS, "engine", name)
        assert (engine(gpu), gpu.control.gpu(ADDRESS).engine, state(gpu)) == (name, name, "working")
    rebind(gpu)
    assert engine(gpu) == "soft"


@pytest.mark.long
def test_the_module_is_loaded_with_an_engine(gpu: Gpu) -> None:
    with gpu.unloaded():
        before = kernel_log()
        refused = subprocess.run(["lab-insmod", "engine=warp"], capture_output=True, text=True, check=False)
        assert refused.returncode
        assert "Invalid" in refused.stderr
        said = "vgpumgr: option engine refused: -EINVAL; unknown engine\n"
        assert said in kernel_log().removeprefix(before)
        subprocess.run(["lab-insmod", "engine=edu"], check=True)
        gpu.sysfs.bind(ADDRESS)
        assert engine(gpu) == "edu"
        gpu.sysfs.unbind(ADDRESS)
        unload_module()
    assert engine(gpu) == "soft"


def keep_busy() -> None:
    """Give the device a job of seconds, as another driver might have done; our driver has driven it before."""
    write_register(REG_FACT, 0xFFFFFFFF)


def take_when_done(gpu: Gpu) -> None:
    """Wait until the device is idle; then the engine is as before."""

    def taken() -> bool:
        with suppress(BusyError):
            gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
        return engine(gpu) == "edu"

    poll(taken, timeout_s=60)
    gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")


def waits(thread: threading.Thread) -> bool:
    """Whether it waits in the module, where no signal reaches it."""
    task = Path(f"/proc/self/task/{thread.native_id}")
    try:
        return "[vgpumgr]" in (task / "stack").read_text() and "\nState:\tD" in (task / "status").read_text()
    except OSError:
        return False


@pytest.mark.long
def test_a_device_that_is_busy_is_not_taken(gpu: Gpu) -> None:
    """A foreign job of seconds is running: the present engine stays, and the device can be used when the job is
    done."""
    gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")  # turns its registers on
    gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")
    keep_busy()
    with pytest.raises(BusyError):
        gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    assert (engine(gpu), state(gpu)) == ("soft", "working")

    take_when_done(gpu)


@pytest.mark.emulated
def test_who_waits_for_an_engine_keeps_nobody_from_other_gpus(gpu: Gpu) -> None:
    """While a GPU's engine changes, a search for a slice waits, because the slice may be that GPU's. GPUs are found
    nevertheless."""
    gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")

    def choose_edu() -> None:
        with suppress(OSError):
            (DEVICE / "vgpu/engine").write_text("edu")

    def look() -> None:
        with Control() as control, suppress(NotFoundError):
            control.slice(NO_SLICE)

    def found_meanwhile() -> bool:
        keep_busy()
        chooser, seeker = threading.Thread(target=choose_edu), threading.Thread(target=look)
        for thread in (chooser, seeker):
            thread.start()
            poll(lambda thread=thread: not thread.is_alive() or waits(thread))  # type: ignore[misc]
        with pytest.raises(UnknownGpuError):
            gpu.control.gpu(NOWHERE)
        # A thread that still waits now also waited during that call. The chooser wakes regularly to check.
        meanwhile = False
        while chooser.is_alive() and seeker.is_alive() and not meanwhile:
            meanwhile = waits(chooser) and waits(seeker)
        chooser.join()
        seeker.join()
        take_when_done(gpu)
        return meanwhile

    assert any(found_meanwhile() for _ in range(3)), "on none of three tries"


def test_what_an_interrupt_was_lost_of_is_no_measure(gpu: Gpu) -> None:
    """Every job would seem to take no time, and jobs of any length would be accepted: the present engine stays."""
    offset = msi_flags()
    timeout = TIMEOUT_MS.read_text()
    TIMEOUT_MS.write_text("1000")
    refused: list[OSError] = []

    def choose_edu() -> None:
        try:
            (DEVICE / "vgpu/engine").write_text("edu")
        except OSError as error:
            refused.append(error)

    def choose_edu_without_interrupts() -> None:
        chooser = threading.Thread(target=choose_edu)
        config = os.open(DEVICE / "config", os.O_RDWR)
        chooser.start()
        while chooser.is_alive():  # the driver turns it on when it takes the function
            flags = int.from_bytes(os.pread(config, 2, offset), "little")
            os.pwrite(config, (flags & ~PCI_MSI_ENABLE).to_bytes(2, "little"), offset)
        os.close(config)

    try:
        for _ in range(5):
            with log_grows() as told:
                choose_edu_without_interrupts()
                lost = "an interrupt was lost" in told()
            if lost or refused:
                break
            gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")  # all was measured before this process turned it off
        assert [error.errno for error in refused] == [errno.EIO]
        assert (engine(gpu), state(gpu)) == ("soft", "working")
    finally:
        TIMEOUT_MS.write_text(timeout)
        gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")
    gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    gpu.sysfs.write_gpu(ADDRESS, "engine", "soft")
    assert min(calibrated()) > 0


# ---- work


def test_factorials_are_right_and_all_else_is_refused(edu: Gpu) -> None:
    edu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = edu.slice("blue")
    cases = [report["case"] for report in client(uuid, "verify").reports if "case" in report]
    assert cases == ["fact"] * 9 + ["wrap"]
    assert client(uuid, "hostile", "op").report("case", "op")["ok"]
    assert client(uuid, "hostile", "op-huge").report("case", "op-huge")["ok"]
    with_result = client(uuid, "saturate", "--op", "fact", "--fact-n", "33", "--items", "200", "--queued-min", "0")
    report = with_result.report("record", "saturate")
    assert (report["verified"], report["mismatches"]) == (200, 0)


def calibrated() -> tuple[int, int]:
    """The fixed time of a job in ns, and the time of each multiplication in ps, as the module predicts them."""
    base_ns, fact_ps = re.findall(r"engine edu: a job takes (\d+) ns and (\d+) ps per multiplication", kernel_log())[-1]
    return int(base_ns), int(fact_ps)


def test_an_item_longer_than_a_chunk_is_refused(edu: Gpu) -> None:
    """The limit is exact to one multiplication, by the prediction, and holds for all items: this engine cannot
    split."""
    edu.tenant("blue", weight=100, timeslice_us=2000)
    uuid = edu.slice("blue")
    base_ns, fact_ps = calibrated()
    chunk_us = base_ns // 1000 + 1000
    longest = ((chunk_us * 1000 - base_ns + 1) * 1000 - 1) // fact_ps

    def send(n: int, *options: str, expected: int) -> Outcome:
        arguments = ("--op", "fact", "--fact-n", str(n), "--items", "4", "--queued-min", "0", *options)
        return client(uuid, "saturate", *arguments, expected=(expected,))

    edu.set_max_chunk_us(chunk_us)
    send(longest, expected=0)
    for options in ((), ("--nosplit",)):
        assert send(longest + 1, *options, expected=5).report("record", "saturate")["error_name"] == "chunk"
    edu.set_max_chunk_us(chunk_us + 1)
    send(longest + 1, expected=0)


@pytest.mark.emulated
def test_only_jobs_that_take_long_are_waited_for_above_all_that_works(edu: Gpu) -> None:
    """The host's processors do all other work, which is nearly everything in a job of one multiplication."""

    def items(device: Device) -> list[bytes]:
        n = 500_000 * 1000 // device.register(REG_FACT_PS)
        return [descriptor(NOP), descriptor(FACT, args=[n]), descriptor(FACT, args=[1]), descriptor(FACT, args=[n])] * 6

    assert executed(edu, items) == ["brief", "waits"] * 12


def test_three_to_one_with_jobs_that_nobody_can_stop(edu: Gpu) -> None:
    """Counters stay within R10's bound, and no run is longer than timeslice and one job, however long jobs really took.

    The heavier tenant's jobs are a quarter as long: charged by the job, it would get less than half of the work done.
    """
    longer = 8 if DEBUG else 1  # otherwise that kernel takes longer for a job than the device
    timeslice_us, weights = 2000 * longer, {"blue": 300, "green": 100}
    job_ns = {"blue": 500_000 * longer, "green": 2_000_000 * longer}
    depth = {"blue": 1024, "green": 256}  # for as long as the client may not run on a slow machine
    edu.set_max_chunk_us(4000 * longer)
    for tenant, weight in weights.items():
        edu.tenant(tenant, weight=weight, timeslice_us=timeslice_us)
    slices = {tenant: edu.slice(tenant) for tenant in weights}
    n = {tenant: n_for(uuid, job_ns[tenant]) for tenant, uuid in slices.items()}
    load: Load = {uuid: {"op": "fact", "fact_n": n[tenant], "depth": depth[tenant]} for tenant, uuid in slices.items()}

    def bound(longest_ns: int) -> float:
        """The lag at each end of the window is at most a timeslice and a job."""
        return 2 * (timeslice_us * 1000 + longest_ns) / sum(window.run_ns.values())

    def tells() -> bool:
        window.close()
        return bound(max(edu.stats(tenant).longest_run_ns for tenant in weights)) < 0.1

    with edu.loaded(load) as outcomes:
        window = edu.measured_over(2.5)
        poll(tells)  # a job is long when this machine does not run us

    reports = [outcomes[0].report("name", uuid) for uuid in load]
    assert all(report["saturated"] and not report["mismatches"] for report in reports)
    longest_job_ns = max(report["item_run_ns_max"] for report in reports)
    within = bound(longest_job_ns)
    assert within < 0.2, "too few jobs to tell"
    assert window.share["blue"] == pytest.approx(0.75, abs=within)
    work = {tenant: window.items_per_s[tenant] * n[tenant] for tenant in weights}
    assert work["blue"] > work["green"]
    for tenant in weights:
        assert 0 < edu.stats(tenant).longest_run_ns <= timeslice_us * 1000 + longest_job_ns
        assert edu.stats(tenant).short_uncut_runs == 0


@pytest.mark.long
def test_a_lost_interrupt_costs_time_and_nothing_else(edu: Gpu) -> None:
    """Results stay right, and the tenant is charged the predicted time of its jobs, not the time waited.

    Another process reads the GPU all the time, which makes time pass in its scheduler.
    """
    TIMEOUT_MS.write_text("500")
    edu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = edu.slice("blue")
    arguments = ("saturate", "--op", "fact", "--fact-n", "30", "--items", "6", "--depth", "6", "--queued-min", "0")
    with config_bit(msi_flags(), PCI_MSI_ENABLE):
        user = Client(["--json", uuid, *arguments])
        while user.process.poll() is None:
            edu.stats("blue")
            time.sleep(0.01)
    report = user.wait().report("record", "saturate")
    assert (report["verified"], report["mismatches"]) == (6, 0)
    assert report["item_run_ns_max"] < 250_000_000
    assert edu.stats("blue").run_ns < 6 * 250_000_000
    assert (state(edu), client(uuid, "verify").status) == ("working", 0)


@pytest.mark.emulated
def test_a_late_interrupt_costs_ten_predictions_and_no_more(edu: Gpu) -> None:
    """This holds however late the interrupt is and however busy the host is, all by the module's own clock.

    The thread records the largest charge of a job right when the job begins, and the interrupt handler when it is done.
    Jobs with interrupts come before the job without one, so that some of them begin without any delay.
    """
    TIMEOUT_MS.write_text("60000")
    edu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = edu.slice("blue")
    base_ns, fact_ps = calibrated()
    n, in_time = 30, 20
    prediction_ns = base_ns + n * fact_ps // 1000
    arguments = ("saturate", "--op", "fact", "--depth", "1", "--queued-min", "0")
    with calls_of("vgpu_engine_busy_until") as calls, traced_runs() as runs:
        client(uuid, *arguments, "--fact-n", f"{n - 1}", "--items", f"{in_time}")
        with config_bit(msi_flags(), PCI_MSI_ENABLE):
            user = Client(["--json", uuid, *arguments, "--fact-n", f"{n}", "--items", "1"])
            poll(lambda: edu.slice_stats(uuid).queued == 1 and result() == math.factorial(n) % 2**32)
            time.sleep(1)
        assert user.process.poll() is None
        raise_interrupt()
        report = user.wait().report("record", "saturate")
    assert (report["verified"], report["mismatches"]) == (1, 0)
    begun, done = calls[::2], calls[1::2]
    assert (len(begun), len(done)) == (in_time + 1, in_time + 1)
    allowed_ns = max(until_ns - now_ns for now_ns, until_ns in begun)
    assert 5 * prediction_ns < allowed_ns <= 10 * prediction_ns + CLOCK_NS
    assert done[-1][0] - begun[-1][0] > 5 * 10**8, "the interrupt was not late"
    assert done[-1][1] == begun[-1][1]
    assert runs[-1].charged_until_ns == begun[-1][1] + NOTICE_NS
    assert report["item_run_ns_max"] == runs[-1].length_ns


# ---- saved and restored


def test_a_slice_is_not_restored_on_another_engine(edu: Gpu) -> None:
    """It is refused whether or not the other engine has its operations: an engine's state is more than that."""
    streams = {}
    for name in ("edu", "soft"):
        edu.clear()
        edu.sysfs.write_gpu(ADDRESS, "engine", name)
        streams[name] = saved(edu)
        assert Header.of(streams[name]).engine.rstrip(b"\0").decode() == name
    for name, other in (("soft", "edu"), ("edu", "soft")):
        edu.clear()
        edu.sysfs.write_gpu(ADDRESS, "engine", name)
        edu.tenant("blue", weight=100, timeslice_us=1000)
        with opened(edu.slice("blue")) as device:
            with pytest.raises(OSError, match=os.strerror(errno.EOPNOTSUPP)):
                restore(device, streams[other])
            assert "restore refused: engine\n" in kernel_log()
            device.reset()
            restore(device, streams[name])
            assert device.register(REG_STATUS) & 3 == 1
