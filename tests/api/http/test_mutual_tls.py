# SPDX-License-Identifier: Apache-2.0
"""The real agent against the real API over TLS: it works, also after kills, and neither of the two reveals a secret."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_agent import faults
from vgpumgr_agent.store import Credentials, token_hash

from tests.agent.fakekernel import FakeKernel
from tests.api.http.tls import Cloud, certifying
from vgpumgr.wire.problem import Code

ROOT = Path(__file__).resolve().parents[3]
IN_TIME_S = 120


class Machine:
    """A host whose agent is a process; a test starts it, if it wants with a crash point."""

    def __init__(self, cloud: Cloud, root: Path, name: str = "one") -> None:
        self.cloud = cloud
        self.name = name
        self.root = root
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start("helper")

    def start(self, name: str, *, point: str = "") -> subprocess.Popen[bytes]:
        more = [] if name == "helper" else [self.cloud.server.url, str(self.cloud.directory / "crt.pem")]
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.agent.processes", name, self.root, *more],
                cwd=ROOT,
                env={**os.environ, faults.VARIABLE: point},
                stderr=log,
                stdout=log,
            )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def credentials(self) -> Credentials:
        return Credentials.model_validate_json((self.root / "state/credentials.json").read_bytes())

    def reported(self) -> Any:
        return self.cloud.operator.get(f"/v1/hosts/{self.name}").json()["last_report_at"]

    def reports_again(self) -> None:
        before = self.reported()
        until(lambda: self.reported() not in (None, before))


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "api").mkdir()
    (tmp_path / "host").mkdir()
    kernel = FakeKernel(tmp_path / "host")
    with certifying(tmp_path / "api") as cloud:
        made = Machine(cloud, tmp_path / "host")
        yield made
        made.end()
    kernel.close()


def test_an_agent_enrols_moves_renews_survives_and_tells_no_secret(machine: Machine) -> None:
    cloud = machine.cloud
    once = cloud.announce("one")
    # The agent starts like one of the release before, with a token.
    said = cloud.enrol_for_a_token(once)
    old = Credentials(host_id=said.host_id, name="one", token=said.token, enrolled_with=token_hash(once))
    (machine.root / "state").mkdir(mode=0o700)
    (machine.root / "state/credentials.json").write_text(old.model_dump_json(exclude={"certificate"}))
    (machine.root / "token").write_text(once)

    first = machine.start("agent", point="renew.answered")
    assert first.wait(IN_TIME_S) == -9
    assert machine.credentials.certificate is None
    second = machine.start("agent", point="renew.stored")
    assert second.wait(IN_TIME_S) == -9
    moved = machine.credentials.certificate
    assert moved is not None
    third = machine.start("agent")
    machine.reports_again()
    certified = [each["actor"] for each in cloud.operator.get("/v1/events").json()["items"]]
    assert certified.count("host:one") >= 3

    # Its certificate is due, so the agent renews it, and the token becomes invalid.
    third.terminate()
    assert third.wait(IN_TIME_S) == 0
    due = moved.model_copy(update={"renew_after_s": 0.0})
    path = machine.root / "state/credentials.json"
    path.write_text(machine.credentials.model_copy(update={"certificate": due}).model_dump_json())
    fourth = machine.start("agent")
    until(lambda: machine.credentials.certificate not in (None, due))
    machine.reports_again()
    answer = cloud.connect(token=old.token).get("/v1/hosts/one/desired")
    assert answer.json()["code"] == Code.AUTH_INVALID

    # The API declares the running host dead and says so. The host returns with another one-time token, like any host
    # with a certificate.
    cloud.fence("one")
    until(lambda: "host.fenced" in (machine.root / "agent.log").read_text())
    again = str(cloud.operator.post("/v1/hosts/one:reenroll").json()["enroll_token"])
    (machine.root / "token").write_text(again)
    machine.reports_again()
    renewed = machine.credentials
    assert renewed.token is None
    assert renewed.certificate is not None
    fourth.terminate()
    assert fourth.wait(IN_TIME_S) == 0

    logs = {name: (machine.root / f"{name}.log").read_text() for name in ("agent", "helper")}
    logs["api"] = cloud.server.log.read_text()
    assert "POST /v1/hosts" in logs["api"]
    assert "DEBUG" in logs["agent"]
    keys = (moved.key, renewed.certificate.key, (cloud.directory / "agents.key").read_text())
    key_lines = [line for key in keys for line in key.splitlines() if not line.startswith("-----")]
    for secret in (cloud.server.token, once, again, str(old.token), *key_lines):
        for name, log in logs.items():
            assert secret not in log, f"a secret in the log of {name}"
            assert secret[5:] not in log, f"part of a secret in the log of {name}"
