# SPDX-License-Identifier: Apache-2.0
"""Real programs on PoCL through a broker of `vgpumgr broker run`, and the effect of the death of each process.

Nothing is simulated: OpenCL's loader, our library, broker, supervisors, children and PoCL are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from vgpumgr.broker.control import Control
from vgpumgr.errors import BrokerUnreachableError

ROOT = Path(__file__).resolve().parents[2]
ADDING = ROOT / "tests/compute/programs/adding.py"
VGPUMGR = [sys.executable, "-c", "from vgpumgr.cli.main import run; run()"]
LIMIT_S = 120.0
DEVICE_LOST = "DEVICE_NOT_AVAILABLE"

CONFIGURATION = """
run_directory = "{directory}"

[tenants.blue]
weight = 3
memory = "256M"

[tenants.red]
memory = "256M"
max_processes = 1
"""


class Host:
    """A broker that was started like an operator starts it."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self.file = folder / "broker.toml"
        self.file.write_text(CONFIGURATION.format(directory=self.directory))
        self.log = folder / "log"
        self.control = Control(self.directory)

    def __enter__(self) -> Self:
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*VGPUMGR, "broker", "run", str(self.file)], stderr=log)
        until(self.is_up)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return all(tenant["supervisor"]["state"] == "up" for tenant in self.control.show()["tenants"])
        except BrokerUnreachableError:
            return False

    def run(self, tenant: str, *command: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(tenant, *command), capture_output=True, text=True, timeout=LIMIT_S, **how)

    def apply(self) -> None:
        """Make the broker read its file again."""
        subprocess.run([*VGPUMGR, "broker", "apply", str(self.file)], check=True, timeout=LIMIT_S)

    def command(self, tenant: str, *command: str) -> list[str]:
        return [*VGPUMGR, "run", "--tenant", tenant, "--run-directory", str(self.directory), "--", *command]

    def start(self, tenant: str, *arguments: str) -> Running:
        return Running(self.command(tenant, sys.executable, str(ADDING), *arguments))

    def processes(self, tenant: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.tenant(tenant)["processes"]
        return found

    def tenant(self, name: str) -> dict[str, Any]:
        found = {each["name"]: each for each in self.control.show()["tenants"]}
        tenant: dict[str, Any] = found[name]
        return tenant


class Running:
    """A program that computes until it is told to end."""

    def __init__(self, command: list[str]) -> None:
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints, text=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def __enter__(self) -> Self:
        line = self.stdout.readline()
        assert line == "computing\n", line + self.complained()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdin.close()
        self.stdout.close()
        self.complaints.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def complained(self) -> str:
        self.complaints.seek(0)
        return self.complaints.read()

    def end(self) -> int:
        """Make the program end by itself, and return how much it has computed."""
        self.stdin.write("\n")
        self.stdin.flush()
        said = self.stdout.read()
        assert self.process.wait(LIMIT_S) == 0, said + self.complained()
        return int(said.splitlines()[-1])

    def loses_its_device(self) -> bool:
        """Wait until the program has failed with OpenCL's error. Any other end fails the test."""
        said = self.stdout.read()
        assert self.process.wait(LIMIT_S) == 3, (self.process.returncode, said, self.complained())
        return DEVICE_LOST in said


def until(condition: Callable[[], bool]) -> None:
    """Poll other processes: each check queries the broker or the kernel."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """Return all processes below a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found + [below for child in found for below in children_of(child)]


@pytest.fixture(scope="module")
def made() -> None:
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "compute"), f"PYTHON={sys.executable}"], check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def host(made: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with Host(tmp_path_factory.mktemp("host")) as running:
        yield running


def test_whatever_dies_the_other_tenants_program_goes_on(made: None, tmp_path: Path) -> None:
    """All deaths are in one test, because each program takes a second or more to compile."""
    host = Host(tmp_path)
    with host, host.start("red") as kept:
        refused = host.run("red", sys.executable, str(ADDING))
        assert refused.returncode != 0
        assert "max_processes" in refused.stderr

        with host.start("blue", "endless") as endless:
            until(lambda: host.tenant("blue")["stats"]["gates"] >= 3)
            endless.kill()
        until(lambda: not host.processes("blue"))

        with host.start("blue") as hit:
            os.kill(first_child(host.tenant("blue")["supervisor"]["pid"]), signal.SIGKILL)
            assert hit.loses_its_device()
        until(lambda: not host.processes("blue"))

        with host.start("blue") as hit:
            supervisor = host.tenant("blue")["supervisor"]
            os.kill(supervisor["pid"], signal.SIGKILL)
            assert hit.loses_its_device()
        until(lambda: host.tenant("blue")["supervisor"]["starts"] > supervisor["starts"])
        assert host.processes("blue") == []

        assert len(host.processes("red")) == 1
        assert host.tenant("red")["stats"]["leased_ns"] > 0
        below = children_of(host.process.pid)
        assert len(below) >= 3
        host.process.kill()
        host.process.wait(LIMIT_S)
        assert kept.loses_its_device()
        until(lambda: not any(is_alive(pid) for pid in below))


@pytest.mark.long
def test_programs_of_two_tenants_compute_side_by_side_and_rightly(host: Host) -> None:
    with host.start("blue") as blue, host.start("red") as red:
        assert [len(host.processes(name)) for name in ("blue", "red")] == [1, 1]
        assert blue.end() > 0
        assert red.end() > 0
    for name in ("blue", "red"):
        until(lambda name=name: not host.processes(name))  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["program", "child", "supervisor"])
@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.3, 1.0, 3.0])
def test_a_death_at_any_moment_is_its_tenants_alone(host: Host, victim: str, after_s: float) -> None:
    with host.start("red") as kept:
        hit = host.start("blue")
        with hit.stdin, hit.stdout, hit.complaints:
            supervisor = host.tenant("blue")["supervisor"]
            time.sleep(after_s)  # the test is about this exact time
            if victim == "program":
                hit.kill()
            elif victim == "supervisor" or not host.processes("blue"):
                os.kill(supervisor["pid"], signal.SIGKILL)
            else:
                os.kill(first_child(supervisor["pid"]), signal.SIGKILL)
            hit.stdin.close()  # a program that was not killed ends by itself
            hit.process.wait(LIMIT_S)
        until(lambda: not host.processes("blue"))
        until(host.is_up)
        with host.start("blue") as again:
            assert again.end() > 0
        assert kept.end() > 0
    until(lambda: not host.processes("red"))


@pytest.mark.long
def test_after_a_broker_that_was_killed_the_next_one_starts(made: None, tmp_path: Path) -> None:
    host = Host(tmp_path)
    with host, host.start("blue") as hit:
        host.process.kill()
        host.process.wait(LIMIT_S)
        assert hit.loses_its_device()
    with host, host.start("blue") as again:
        assert again.end() > 0


def first_child(supervisor: int) -> int:
    """Return the process that serves a program, found by its name."""
    named = [pid for pid in children_of(supervisor) if Path(f"/proc/{pid}/comm").read_text().startswith("vgpu-child")]
    return named[-1]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- messages of `vgpumgr run` itself


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--tenant", "green", "--", "true"), 3, "vgpumgr: object.unknown: the broker in {directory} has no tenant"),
        (("--tenant", "blue", "--", "no-such-program"), 127, "vgpumgr: program.missing: no-such-program: no such file"),
    ],
)
def test_what_cannot_be_started_is_one_line_with_a_code(
    host: Host, arguments: tuple[str, ...], status: int, said: str
) -> None:
    command = [*VGPUMGR, "run", "--run-directory", str(host.directory), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == status
    assert ended.stderr.startswith(said.format(directory=host.directory))
    assert ended.stderr.count("\n") == 1


def test_a_program_gets_its_arguments_and_its_environment(host: Host) -> None:
    script = (
        "import os, sys; print(sys.argv[1:], os.environ['VGPUMGR_SOCKET'], os.listdir(os.environ['OCL_ICD_VENDORS']))"
    )
    ended = host.run("blue", sys.executable, "-c", script, "--tenant", "x", "-v")
    assert ended.stdout == f"['--tenant', 'x', '-v'] {host.directory}/blue.sock ['vgpumgr.icd']\n", ended.stderr


def test_a_configuration_is_applied_live_and_refused_by_field(host: Host) -> None:
    text = host.file.read_text()
    host.file.write_text(text.replace("weight = 3", "weight = 5"))
    apply = [*VGPUMGR, "broker", "apply", str(host.file)]
    assert subprocess.run(apply, timeout=LIMIT_S).returncode == 0
    assert host.tenant("blue")["weight"] == 5
    host.file.write_text(text + "reserve_us = 1000\nreserve_period_us = 1000\n")
    ended = subprocess.run(apply, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stderr.split(": ")[:3]) == (
        2,
        ["vgpumgr", "field.invalid", "tenants.red.reserve_period_us"],
    )
    assert host.tenant("red")["band"] == "fair"
    host.file.write_text(text)
    assert subprocess.run(apply, timeout=LIMIT_S).returncode == 0


@pytest.mark.long
def test_top_shows_who_got_what(host: Host) -> None:
    top = [*VGPUMGR, "top", "--broker", "--run-directory", str(host.directory), "--once", "--interval", "0.5"]
    with host.start("blue"):
        ended = subprocess.run(top, capture_output=True, text=True, timeout=LIMIT_S)
    header, blue, red = ended.stdout.splitlines()
    assert header.split()[:4] == ["TENANT", "WEIGHT", "ENTITLED", "OBTAINED"]
    assert (blue.split()[:3], red.split()[:3]) == (["blue", "3", "100.0%"], ["red", "100", "-"])
