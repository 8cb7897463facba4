# SPDX-License-Identifier: Apache-2.0
"""Native programs as users start and see them: `vgpumgr broker run`, `run --native`, `broker show`, `top --broker`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import LIMIT_S, wait_for
from tests.compute.native_rig import MIB, PROGRAM, NativeProgram, make_native
from vgpumgr.broker.control import Control
from vgpumgr.errors import BrokerUnreachableError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")

VGPUMGR = [sys.executable, "-c", "from vgpumgr.cli.main import run; run()"]
CONFIGURATION = """
run_directory = "{folder}/run"

[accelerator]
nvidia = 0

[tenants.blue]
memory = "64M"
native = true
"""


class Site:
    """A broker of one native tenant. Its supervisors have the fake driver."""

    def __init__(self, folder: Path, gpu: Gpu) -> None:
        self.directory = folder / "run"
        self.file = folder / "broker.toml"
        self.file.write_text(CONFIGURATION.format(folder=folder))
        self.control = Control(self.directory)
        self.gpu = gpu

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*VGPUMGR, *arguments, "--run-directory", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        run = [*VGPUMGR, "run", "--native", "--tenant", "blue", "--run-directory", str(self.directory), "--", *command]
        pipe = subprocess.PIPE
        return subprocess.Popen(run, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def is_up(self) -> bool:
        try:
            return all(each["supervisor"]["state"] == "up" for each in self.control.show()["tenants"])
        except BrokerUnreachableError:
            return False


@pytest.fixture
def site(gpu: Gpu) -> Iterator[Site]:
    make_native()
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        found = Site(Path(folder), gpu)
        command = [*VGPUMGR, "broker", "run", str(found.file)]
        with subprocess.Popen(command, env={**os.environ, **gpu.environment}) as broker:
            try:
                wait_for(found.is_up, "the broker")
                yield found
            finally:
                broker.terminate()


def test_a_native_program_is_started_and_shown(site: Site, gpu: Gpu) -> None:
    command = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
    with NativeProgram(site.start(*command)).wait_until_ready().work() as program:
        assert program.pid == program.process.pid
        assert program.do(f"allocate {40 * MIB}").startswith("ok ")
        assert program.do(f"allocate {40 * MIB}") == "failed status 0x51"
        wait_for(lambda: native(site)["working"] == 1, "the program to be known to work")
        tenants, processes = site.call("broker", "show").stdout.split("\n\n")
        working, gate, _, enforced_by = tenants.splitlines()[1].split()[-4:]
        assert (working, gate, enforced_by) == ("1/1", "open", "firmware")
        assert processes.splitlines()[1].split()[:4] == ["blue", str(program.pid), "native", "running"]
        top = site.call("top", "--broker", "--once", "--interval", "0.2", "-o", "json")
        assert top.returncode == 0, top.stderr
        (row,) = json.loads(top.stdout)
        assert (row["entitled_share"], row["native"]["working"]) == (1.0, 1)
        assert row["obtained_share"] == row["native"]["open_share"] > 0
    ended = site.start("/bin/sh", "-c", "exit 7")
    assert ended.wait(LIMIT_S) == 7


def native(site: Site) -> dict[str, Any]:
    (tenant,) = site.control.show()["tenants"]
    found: dict[str, Any] = tenant["native"]
    return found


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_started_ends_as_with_env(site: Site, program: str, status: int) -> None:
    out, err = site.start(program).communicate(timeout=LIMIT_S)
    assert out == ""
    assert err.startswith(f"vgpumgr: {program}: ")
    assert err.count("\n") == 1


def test_a_tenant_that_is_not_there(site: Site) -> None:
    process = subprocess.run(
        [*VGPUMGR, "run", "--native", "--tenant", "green", "--run-directory", str(site.directory), "--", "true"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert process.returncode == 3
    assert process.stderr.startswith("vgpumgr: object.unknown: ")
