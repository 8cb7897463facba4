# SPDX-License-Identifier: Apache-2.0
"""The behaviour of the lab tool for User-mode Linux, each part tested by a boot that takes a second."""

import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LAB = [sys.executable, str(Path(__file__).resolve().parent / "lab"), "run", "--kernel", "uml", "--minimal"]
LAB += ["--no-artefacts"]

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)


def run_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    """On a new machine this builds that kernel first."""
    return subprocess.run([*LAB, *arguments], capture_output=True, text=True, timeout=1800)


def kept_logs(stderr: str) -> dict[str, str]:
    """Return the logs that a failed run left, by name, and remove them."""
    (place,) = re.findall(r"logs: (\S+)", stderr)
    logs = {path.name: path.read_text(errors="replace") for path in Path(place).iterdir()}
    shutil.rmtree(place)
    return logs


def kernels_with(text: str) -> list[int]:
    """Processes of this machine whose command line contains `text`: the kernel, and the processes it cloned from
    itself."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in file.read_bytes() and b"lab.machine=uml" in file.read_bytes():
                found.append(int(file.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@needs_lab
def test_output_and_exit_status_pass_through_and_a_failed_run_keeps_its_logs() -> None:
    done = run_lab("--env", "WORD=two words", "--", 'echo "$WORD"; sleep 1000 & exit 7')
    assert (done.returncode, done.stdout) == (7, "two words\n"), done.stderr
    logs = kept_logs(done.stderr)
    assert "reboot: Power down" in logs["serial.log"]
    assert "Linux version" in logs["dmesg.log"]


@needs_lab
def test_a_complaint_of_the_kernel_fails_a_command_that_passed() -> None:
    done = run_lab("--", 'echo "<4>WARNING: this is a test" >/dev/kmsg')
    assert done.returncode == 70
    assert "WARNING: this is a test" in done.stderr
    kept_logs(done.stderr)


@needs_lab
def test_what_takes_too_long_is_ended_and_leaves_no_process() -> None:
    done = run_lab("--timeout", "4", "--", "echo started; sleep 1000 & sleep 1000")
    assert (done.returncode, done.stdout) == (124, "started\n"), done.stderr
    (place,) = re.findall(r"logs: (\S+)", done.stderr)
    assert kernels_with(place) == []
    kept_logs(done.stderr)


def _terminate(tool: "subprocess.Popen[str]") -> None:
    tool.terminate()


def _kill(tool: "subprocess.Popen[str]") -> None:
    tool.kill()


@needs_lab
@pytest.mark.parametrize("end", [_terminate, _kill])
def test_the_kernel_ends_with_the_tool(end: Callable[["subprocess.Popen[str]"], None]) -> None:
    with subprocess.Popen([*LAB, "--", "echo started; sleep 1000"], stdout=subprocess.PIPE, text=True) as tool:
        assert tool.stdout is not None
        assert tool.stdout.readline() == "started\n"
        kernels = kernels_with(f"-{tool.pid}/initrd")
        assert kernels
        end(tool)
        for pid in kernels:
            wait_for_end(pid)
    for place in Path(__file__).parents[2].glob(f"build/lab/runs/*-{tool.pid}"):
        shutil.rmtree(place)


def wait_for_end(pid: int) -> None:
    """Wait until no process has this number any more."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(file, select.POLLIN)
        assert poller.poll(60_000), f"{pid} lives"
    finally:
        os.close(file)


@needs_lab
def test_in_virtual_time_a_day_passes_at_once() -> None:
    done = run_lab("--virtual-time", "--timeout", "60", "--", "sleep 86400; cut -d. -f1 /proc/uptime")
    assert done.returncode == 0, done.stderr
    assert 86_400 <= int(done.stdout) < 86_500


@pytest.mark.parametrize(
    "words",
    [
        ("--kernel", "uml"),
        ("--kernel", "uml", "--systemd"),
        ("--kernel", "uml", "--bare", "--icount"),
        ("--kernel", "uml", "--bare", "--neighbour", "true"),
        ("--kernel", "uml", "--bare", "--compute"),
        ("--minimal", "--virtual-time"),
        ("--minimal", "--compute"),
        ("--kernel", "uml-smp", "--minimal", "--virtual-time"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...]) -> None:
    done = subprocess.run([*LAB[:3], *words, "--", "true"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 125
    assert "goes with" in done.stderr or "does not go with" in done.stderr
