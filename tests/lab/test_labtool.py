# SPDX-License-Identifier: Apache-2.0
"""The behaviour of the lab tool that other tests rely on. It takes a few boots of the minimal lab host."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from labhost.artefacts import built_modules
from labhost.cache import Cache
from labhost.errors import EXIT_LAB_FAILED, EXIT_SPLAT, EXIT_TIMEOUT, LabError
from labhost.mirror import debian_mirror
from labhost.own_kernel import lost_settings, settings
from labhost.qemu import is_virtual, probe_kvm
from labhost.splats import complaints, stale_breakpoint
from labhost.toolchain import KERNELS
from labhost.unsteady import end_of_qemu, fault

HERE = Path(__file__).resolve().parent
LAB = [sys.executable, str(HERE / "lab")]

UNSTEADY = "unsteady: {}; the command is run once more in a fresh lab host\n"

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)


def run_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*LAB, "run", "--minimal", "--no-artefacts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def kept_directory(stderr: str) -> Iterator[Path]:
    for match in re.finditer(r"logs: (\S+)", stderr):
        yield Path(match[1])


def qemus_with(text: str) -> list[int]:
    """Processes whose command line names `text`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in file.read_bytes() and b"qemu" in file.read_bytes():
                found.append(int(file.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@needs_lab
def test_output_and_exit_status_pass_through_and_a_failed_run_keeps_its_serial_log() -> None:
    done = run_lab("--env", "WORD=two words", "--", 'echo "$WORD"; sleep 1000 & exit 7')
    assert (done.returncode, done.stdout) == (7, "two words\n")
    (kept,) = kept_directory(done.stderr)
    assert (kept / "serial.log").stat().st_size > 0
    assert "Linux version" in (kept / "dmesg.log").read_text()
    shutil.rmtree(kept)


@needs_lab
@pytest.mark.parametrize(
    ("end", "status"), [("exit 0", 0), ("exit 9", 9), ('echo "<4>WARNING: this is a test" >/dev/kmsg', 70)]
)
def test_a_neighbour_is_on_the_same_wire_and_judged_as_well(end: str, status: int) -> None:
    here = "until nc 192.0.2.2 7 2>/dev/null; do sleep 1; done"
    done = run_lab("--neighbour", f"hostname | nc -l -p 7; {end}", "--", here)
    assert (done.returncode, done.stdout) == (status, "lab2\n"), done.stderr
    assert ("it was the neighbour that failed" in done.stderr) == (status != 0)
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)


@needs_lab
def test_a_hang_ends_at_the_time_limit_and_leaves_no_qemu() -> None:
    started = time.monotonic()
    done = run_lab("--timeout", "8", "--", "echo started; sleep 1000")
    assert done.returncode == 124
    assert time.monotonic() - started < 60
    (kept,) = kept_directory(done.stderr)
    assert not qemus_with(str(kept))
    shutil.rmtree(kept)


@needs_lab
def test_a_panic_is_told_from_a_failing_command() -> None:
    done = run_lab("--", "echo c >/proc/sysrq-trigger; sleep 10")
    assert done.returncode == 125
    assert "sysrq triggered crash" in done.stderr
    assert "unsteady" not in done.stderr, "a panic may be the product's doing, and is not run again"
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)


@needs_lab
def test_a_lab_host_that_ends_without_a_panic_says_why_and_is_run_once_more() -> None:
    done = run_lab("--", "echo triple >/sys/kernel/reboot/type; echo b >/proc/sysrq-trigger; sleep 60")
    assert done.returncode == 125
    assert done.stderr.count("a processor of the lab host had a triple fault") == 2
    assert done.stderr.count(UNSTEADY.format("a processor had a triple fault")) == 1
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)

    command = [*LAB, "run", "--minimal", "--no-artefacts", "--", "echo started; sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        for _ in range(2):
            assert tool.stdout.readline() == "started\n"
            (qemu,) = qemus_with(f"-{tool.pid}/serial.log")
            os.kill(qemu, signal.SIGSEGV)
        _, errors = tool.communicate(timeout=60)
    assert tool.returncode == 125
    assert errors.count("\nQEMU was killed by SIGSEGV\n") == 2
    assert errors.count(UNSTEADY.format("QEMU was killed by SIGSEGV")) == 1
    for kept in kept_directory(errors):
        shutil.rmtree(kept)


@pytest.mark.parametrize(
    ("status", "name", "reset", "told"),
    [
        (-signal.SIGSEGV, "SIGSEGV", "", "QEMU was killed by SIGSEGV"),
        (-signal.SIGKILL, "SIGKILL", "", "QEMU was killed by SIGKILL"),
        (0, "", "CPU Reset (CPU 1)\nTriple fault\n", "a processor had a triple fault"),
        (0, "", "CPU Reset (CPU 1)\n", "the lab host powered off before the command's end"),
        (1, "", "", None),  # QEMU itself refuses the option, and would refuse it again
    ],
)
def test_only_an_end_that_the_product_had_no_part_in_is_the_labs_fault(
    tmp_path: Path, status: int, name: str, reset: str, told: str | None
) -> None:
    neighbour = tmp_path / "neighbour" / "serial.log"
    neighbour.parent.mkdir()
    boot = "[    0.000000] Linux version 6.12\n[    2.000001] vgpumgr: loaded\n"
    (tmp_path / "serial.log").write_text(boot)
    (tmp_path / "reset.log").write_text(reset)
    (tmp_path / "qemu.log").write_text(f"qemu: warning: something\n{end_of_qemu(status, name)}\n")
    assert fault(EXIT_LAB_FAILED, tmp_path) == told
    assert [fault(other, tmp_path) for other in (0, 1, EXIT_SPLAT, EXIT_TIMEOUT)] == [None] * 4

    for log in (tmp_path / "serial.log", neighbour):
        for complaint in ("Kernel panic - not syncing: sysrq", "WARNING: CPU: 0 PID: 1 at vgpu.c:1", "BUG: KASAN: f"):
            log.write_text(f"{boot}[    3.000000] {complaint}\n")
            assert fault(EXIT_LAB_FAILED, tmp_path) is None, "a complaining kernel may be the product's doing"
        log.write_text(boot)
    (tmp_path / "report").write_text("status 125\n")
    assert fault(EXIT_LAB_FAILED, tmp_path) is None, "it was the command's own status"


def test_without_a_word_of_how_qemu_ended_nothing_is_the_labs_fault(tmp_path: Path) -> None:
    assert fault(EXIT_LAB_FAILED, tmp_path) is None


@needs_lab
def test_a_kernel_complaint_fails_a_command_that_passed() -> None:
    complain = 'echo "<4>WARNING: this is a test" >/dev/kmsg'
    done = run_lab("--", complain)
    assert done.returncode == 70
    assert "WARNING: this is a test" in done.stderr
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)


FALL = """
[   28.429808] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[   28.430360] CPU: 1 UID: 0 PID: 296 Comm: worker Tainted: G           OE      6.12.117+deb13-amd64 #1
[   28.430647] RIP: 0010:kfree+0xa0/0x350
[   28.431148] Code: 4c 8b 75 08 4d 8b 6c 24 08 48 89 5c 24 10 {met} <90> 4d 8b 44 24 38 49 83 f8 07 0f 87 50 01 00 00
[   28.440751] Kernel panic - not syncing: Fatal exception in interrupt
"""


def test_a_breakpoint_that_is_there_is_the_kernels_own_fault() -> None:
    assert stale_breakpoint(FALL.format(met="66"))
    assert not stale_breakpoint(FALL.format(met="cc"))
    assert not stale_breakpoint(FALL.format(met="66").replace("int3", "invalid opcode"))
    assert not stale_breakpoint("")


@needs_lab
def test_what_only_the_emulator_is_to_blame_for_is_run_once_more() -> None:
    texts = [re.sub(r"^\[[^]]*\] ", "<0>", line) for line in FALL.format(met="66").strip().splitlines()]
    say = "; ".join(f"echo '{text}' >/dev/kmsg" for text in texts)
    # the kernel drops lines of a burst, and the boot has already written some
    every_line = "echo on >/proc/sys/kernel/printk_devkmsg"
    done = run_lab("--", f"echo begun; {every_line}; {say}; echo c >/proc/sysrq-trigger; sleep 10")
    assert (done.returncode, done.stdout) == (125, "begun\n" * 2)
    taken_away = "the emulator executed a breakpoint that the kernel had taken away"
    assert done.stderr.count(UNSTEADY.format(taken_away)) == 1
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)


@needs_lab
def test_qemu_dies_with_the_tool_even_when_that_is_killed() -> None:
    command = [*LAB, "run", "--minimal", "--no-artefacts", "--", "echo started; sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == b"started\n"
        mark = f"-{tool.pid}/serial.log"
        (qemu,) = qemus_with(mark)
        tool.send_signal(signal.SIGKILL)
    for _ in range(50):
        if not Path(f"/proc/{qemu}").exists():
            break
        time.sleep(0.1)
    assert not qemus_with(mark)
    for left in (HERE.parents[1] / "build" / "lab" / "runs").glob(f"*-{tool.pid}"):
        shutil.rmtree(left)


@needs_lab
@pytest.mark.long
def test_a_reboot_that_nobody_asked_for_fails_the_run() -> None:
    command = [
        *LAB,
        "run",
        "--systemd",
        "--reboots",
        "--",
        "echo boot $LAB_BOOT; echo b >/proc/sysrq-trigger; sleep 60",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 125
    assert done.stdout == "boot 1\nlab: the lab host has rebooted, and nobody called lab-reboot\n"
    for kept in kept_directory(done.stderr):
        shutil.rmtree(kept)


def test_only_a_lab_host_with_systemd_reboots() -> None:
    done = run_lab("--reboots", "--", "true")
    assert done.returncode == 125
    assert "--reboots goes with --systemd" in done.stderr


@pytest.mark.parametrize("behaviour", ["exit 1", "sleep 1000"])
def test_without_a_boot_under_kvm_the_probe_says_no(tmp_path: Path, behaviour: str) -> None:
    qemu = tmp_path / "qemu"
    qemu.write_text(f"#!/bin/sh\nexec {behaviour}\n" if "sleep" in behaviour else "#!/bin/sh\nexit 1\n")
    qemu.chmod(0o755)
    assert not probe_kvm([str(qemu)], tmp_path / "vmlinuz", tmp_path / "initrd", limit_s=0.5)


@pytest.mark.parametrize(("flags", "virtual"), [("fpu svm hypervisor rdtscp", True), ("fpu svm rdtscp", False)])
def test_a_machine_says_whether_it_is_virtual(tmp_path: Path, flags: str, virtual: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: hypervisor\n")
    assert is_virtual(cpuinfo) is virtual


def test_only_lines_of_the_kernel_itself_are_complaints() -> None:
    log = (
        "[    1.0] systemd[1]: WARNING: not the kernel\n"
        "[    2.000001] WARNING: CPU: 0 PID: 1 at vgpu.c:1\n"
        "[    2.000002] Call Trace:\n"
        "[    3.000000][   T12] BUG: KASAN: slab-out-of-bounds in f\n"
    )
    assert len(complaints(log)) == 1
    assert complaints("[    1.0] [ BUG: Invalid wait context ]\n")
    assert complaints("[    1.0] INFO: trying to register non-static key.\n")
    assert complaints("[    1.0] vgpumgr: loaded\n") == []
    assert complaints("[    9.1] BUG: sleeping function called from invalid context at a.c:1\n")


def test_a_build_that_left_a_module_out_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Otherwise tests that need the module would skip, or report only that it is missing."""
    tests = ("tests/kmod/defects/vgpu_defects.ko", "tests/kmod/vendor/vgpu_vendor.ko")
    for name in ("kmod/vgpumgr.ko", "kmod/guest/vgpu_guest.ko", *tests):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert len(built_modules(tmp_path, KERNELS["6.12"])) == 3
    with pytest.raises(LabError, match=r"kernel debug left no kmod/kunit/vgpumgr_kunit\.ko$"):
        built_modules(tmp_path, KERNELS["debug"])
    (tmp_path / "kmod/vgpumgr.ko").unlink()
    with pytest.raises(LabError, match=r"kernel 6\.12 left no kmod/vgpumgr\.ko$"):
        built_modules(tmp_path, KERNELS["6.12"])


def test_a_setting_that_the_kernel_s_dependencies_dropped_is_named() -> None:
    wanted = settings("# why\nCONFIG_KASAN=y\nCONFIG_VFIO=m\n# CONFIG_SLUB_TINY is not set\n# CONFIG_SMP is not set\n")
    got = settings("CONFIG_VFIO=m\nCONFIG_SLUB_TINY=y\nCONFIG_NET=y\n")
    assert lost_settings(wanted, got) == ["KASAN=n instead of y", "SLUB_TINY=y instead of n"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sources.list", "deb [signed-by=/k.gpg] http://mirror.test/debian bookworm main\n"),
        (
            "sources.list.d/debian.sources",
            "Types: deb\n# a comment\nURIs: http://other.test/other\n http://mirror.test/debian\n",
        ),
    ],
)
def test_the_mirror_is_the_one_apt_uses(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert debian_mirror({}, tmp_path) == "http://mirror.test/debian"


def test_without_a_debian_mirror_the_error_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://archive.test/ubuntu noble main\n")
    with pytest.raises(LabError, match="VGPUMGR_DEBIAN_MIRROR"):
        debian_mirror({}, tmp_path)


@needs_lab
def test_a_toolchain_has_a_place_for_temporary_files_wherever_the_caller_s_is(tmp_path: Path) -> None:
    command = [*LAB, "toolchain", "--", "mktemp"]
    subprocess.run(command, check=True, timeout=600, env=os.environ | {"TMPDIR": str(tmp_path)})


def test_a_failed_build_leaves_no_cache_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(directory: Path) -> None:
        (directory / "half").touch()
        raise LabError("no")

    with pytest.raises(LabError):
        cache.entry("thing", "key", fail)
    entry = cache.entry("thing", "key", lambda directory: (directory / "whole").touch())
    assert [path.name for path in entry.iterdir()] == ["whole"]
