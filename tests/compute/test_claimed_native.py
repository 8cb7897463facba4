# SPDX-License-Identifier: Apache-2.0
"""Claims for processes with real broker, launcher and fence on the fake driver, as the agent's helper starts them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent.helper.broker_services import Processes
from vgpumgr_agent.helper.brokers import Brokers

from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import LIMIT_S, wait_for
from tests.compute.native_rig import MIB, PROGRAM, NativeProgram, make_native

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")

VGPUMGR = [sys.executable, "-c", "from vgpumgr.cli.main import run; run()"]
ADDRESS = "0000:3b:00.0"
A, B = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
TERMS = {"tenant": "blue", "weight": 300, "cap_us": 0, "cap_period_us": 0, "timeslice_us": 2000, "mem_bytes": 64 * MIB}
STRICT = {**TERMS, "weight": 100, "cap_us": 2000, "cap_period_us": 20_000}


class Site:
    """A host's GPU that is set aside, and the way to start programs for claims there."""

    def __init__(self, folder: Path, gpu: Gpu) -> None:
        self.brokers = Brokers(folder / "b", folder / "agent.toml", Processes())
        self.directory = folder / "b" / ADDRESS
        self.gpu = gpu
        (folder / "agent.toml").write_text(f'[gpus."{ADDRESS}"]\nworkload = "process"\nexecutor = {{nvidia = 0}}\n')

    def admit(self, **claims: dict[str, Any]) -> None:
        names = {"a": A, "b": B}
        self.brokers.admit(gpu=ADDRESS, claims=[{"uuid": names[name], **terms} for name, terms in claims.items()])

    def start(self, claim: str) -> NativeProgram:
        self.wait_until_ready()
        program = [sys.executable, "-S", str(PROGRAM), str(self.gpu.fake.directory / "socket"), self.gpu.version]
        run = [*VGPUMGR, "run", "--native", "--claim", claim, "--run-directory", str(self.directory), "--", *program]
        pipe = subprocess.PIPE
        # Supervisors and fences have the fake driver. A program that had it itself would bypass its fence.
        env = {name: value for name, value in os.environ.items() if name not in self.gpu.environment}
        return NativeProgram(subprocess.Popen(run, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env))

    def wait_until_ready(self) -> None:
        wait_for(lambda: all(each["ready"] for each in self.tenants().values()), "the supervisors")

    def tenants(self) -> dict[str, dict[str, Any]]:
        return {each["uuid"]: each for broker in self.brokers.all() for each in broker["tenants"]}


@pytest.fixture
def site(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    make_native()
    for name, value in gpu.environment.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the path of a socket must be short
        found = Site(Path(folder), gpu)
        yield found
        for claim in (A, B):
            found.brokers.dismiss(uuid=claim)


def test_a_claim_has_its_memory_and_what_its_programs_obtain(site: Site) -> None:
    site.admit(a=TERMS, b=STRICT)
    site.wait_until_ready()
    enforced = {claim: each["enforced_by"] for claim, each in site.tenants().items()}
    assert enforced == {A: "firmware", B: "firmware+gate"}
    with site.start(A).wait_until_ready().work() as program:
        assert program.do(f"allocate {40 * MIB}").startswith("ok ")
        assert program.do(f"allocate {40 * MIB}") == "failed status 0x51"
        wait_for(lambda: site.tenants()[A]["run_ns"] > 0, "the program to obtain something")
        assert {claim: each["programs"] for claim, each in site.tenants().items()} == {A: 1, B: 0}


def test_a_quota_that_is_cut_reaches_a_program_that_runs(site: Site) -> None:
    site.admit(a=TERMS)
    with site.start(A).wait_until_ready().work() as program:
        site.admit(a=STRICT)
        assert site.tenants()[A]["enforced_by"] == "firmware+gate"
        assert program.do(f"allocate {MIB}").startswith("ok ")
        assert site.tenants()[A]["programs"] == 1


def test_a_claim_that_goes_ends_its_programs_and_no_others(site: Site) -> None:
    site.admit(a=TERMS, b=TERMS)
    with site.start(A).wait_until_ready() as gone, site.start(B).wait_until_ready().work() as left:
        site.brokers.dismiss(uuid=A)
        assert gone.process.wait(LIMIT_S) == -9
        assert set(site.tenants()) == {B}
        assert left.do(f"allocate {MIB}").startswith("ok ")


def test_the_last_claim_ends_the_broker_and_its_programs(site: Site) -> None:
    site.admit(a=TERMS)
    with site.start(A).wait_until_ready() as gone:
        site.brokers.dismiss(uuid=A)
        assert gone.process.wait(LIMIT_S) == -9
    assert site.brokers.all() == []


def test_a_broker_that_was_killed_leaves_no_program_and_comes_again(site: Site) -> None:
    site.admit(a=TERMS)
    with site.start(A).wait_until_ready() as gone:
        pid = int((site.directory / "pid").read_text())
        os.kill(pid, 9)
        assert gone.process.wait(LIMIT_S) == -9
    assert [each["running"] for each in site.brokers.all()] == [False]
    site.admit(a=TERMS)
    with site.start(A).wait_until_ready().work() as program:
        assert program.do(f"allocate {MIB}").startswith("ok ")
