# SPDX-License-Identifier: Apache-2.0
"""The agents' authority and the API's certificate are replaced while real agents run, as the documentation
describes.
"""

import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from vgpumgr_api.auth import agent_ca, agent_ca_rotation
from vgpumgr_api.auth.agent_ca import CaError
from vgpumgr_api.main import main

from tests.agent.fakekernel import FakeKernel
from tests.api.http.process import Server, command, initialised, listening, settings_file, started
from tests.api.http.test_mutual_tls import IN_TIME_S, Machine, until
from tests.api.http.tls import CA, TLS, Cloud, Host, make_certificate

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LIFE_S = 600


class Api:
    """A deployment with one API, which is restarted after each step."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        make_certificate(directory)
        self.log = directory / "api.log"
        self.settings = self._settings(0)
        self.token = initialised(self.settings)
        made = command("create-agent-ca", settings=self.settings)
        assert made.returncode == 0, made.stderr
        self.process = started(self.settings, self.log)
        self.url = listening(self.process, self.log)
        self.settings = self._settings(int(self.url.rpartition(":")[2]))
        self.cloud = Cloud(Server(self.process, self.url, self.token, self.log), directory, httpx2.Client())
        self.cloud.operator = self.cloud.connect(token=self.token)

    def _settings(self, port: int) -> Path:
        return settings_file(self.directory, listen_port=port, agent_certificate_life_s=LIFE_S, **(TLS | CA))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.end()
        self.process = started(self.settings, self.log)
        listening(self.process, self.log)
        self.cloud.operator = self.cloud.connect(token=self.token)

    def rotate(self, *step: str) -> list[str]:
        done = command("rotate-agent-ca", *step, settings=self.settings)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "api").mkdir()
    made = Api(tmp_path / "api")
    yield made
    made.end()


@pytest.fixture
def machines(api: Api, tmp_path: Path) -> Iterator[list[Machine]]:
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            stack.callback(FakeKernel(tmp_path / name).close)
            made.append(Machine(api.cloud, tmp_path / name, name))
            stack.callback(made[-1].end)
            (tmp_path / name / "token").write_text(api.cloud.announce(name))
        yield made


def authority(certificate: str) -> bytes | None:
    said = agent_ca.peer(ssl.PEM_cert_to_DER_cert(certificate))
    assert said is not None
    return said.authority


def own(machine: Machine) -> bytes | None:
    certificate = machine.credentials.certificate
    return None if certificate is None else authority(certificate.certificate)


def test_agents_move_to_another_authority_and_lose_no_hour(api: Api, machines: list[Machine]) -> None:
    one, two = machines
    agents = [each.start("agent") for each in machines]
    for each in machines:
        until(lambda path=each.root / "state/credentials.json": path.exists())
        each.reports_again()
    agents[1].terminate()
    assert agents[1].wait(IN_TIME_S) == 0  # the agent stays off from now on
    kept = one.credentials
    assert kept.certificate is not None
    first = own(one)
    assert first == own(two)
    old = Host(api.cloud, "one", kept.host_id, kept.certificate.key, kept.certificate.certificate)

    assert [line.partition(", ")[2] for line in api.rotate("begin")] == ["issues certificates", "is accepted"]
    api.again()
    one.reports_again()
    assert authority(api.cloud.host("three").certificate) == first

    assert [line.partition(", ")[2] for line in api.rotate("switch")] == ["is accepted", "issues certificates"]
    api.again()
    second = authority(api.cloud.host("four").certificate)
    assert second != first
    assert old.desired() == "ok", "the former authority is believed until its end"
    until(lambda: own(one) == second)
    one.reports_again()
    early = command("rotate-agent-ca", "end", settings=api.settings)
    assert early.returncode == 1
    assert "wait for that, or give --force" in early.stderr

    assert len(api.rotate("end", "--force")) == 1
    api.again()
    one.reports_again()
    with pytest.raises(httpx2.TransportError):
        old.desired()

    # The agent that was off returns with another one-time token, like an agent whose certificate has expired.
    two.start("agent")
    until(lambda: "API:" in (two.root / "agent.log").read_text())
    again = api.cloud.operator.post("/v1/hosts/two:reenroll").json()["enroll_token"]
    (two.root / "token").write_text(again)
    until(lambda: own(two) == second)
    two.reports_again()

    # The API gets a certificate that no agent trusts yet. Running agents read the new CA file.
    make_certificate(api.directory)
    api.again()
    one.reports_again()


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "agents.pem", tmp_path / "agents.key"
    agent_ca.create(certificate, key, now=NOW)
    return certificate, key


def content(files: tuple[Path, Path]) -> list[bytes | None]:
    certificate, key = files
    every = (certificate, key, agent_ca_rotation.next_key(key))
    return [each.read_bytes() if each.exists() else None for each in every]


def test_each_step_comes_when_it_is_its_turn_and_changes_nothing_else(files: tuple[Path, Path]) -> None:
    def refused(step: str, said: str) -> None:
        before = content(files)
        with pytest.raises(CaError, match=said):
            steps[step]()
        assert content(files) == before

    late = NOW + timedelta(seconds=LIFE_S)
    steps = {
        "begin": lambda: agent_ca_rotation.begin(*files, now=NOW),
        "switch": lambda: agent_ca_rotation.switch(*files, now=NOW),
        "end": lambda: agent_ca_rotation.end(*files, life_s=LIFE_S, now=NOW + timedelta(seconds=LIFE_S - 1)),
    }
    refused("switch", "begin the rotation first")
    refused("end", "nothing to end")
    steps["begin"]()
    coming = agent_ca_rotation.next_key(files[1])
    assert coming.stat().st_mode & 0o777 == 0o600
    refused("begin", "has begun already")
    refused("end", "not been switched yet")
    steps["switch"]()
    assert not coming.exists()
    refused("switch", "begin the rotation first")
    refused("begin", "end that rotation first")
    refused("end", "until 2026-11-21 12:10:00 UTC")
    agent_ca_rotation.end(*files, life_s=LIFE_S, now=late)
    refused("end", "nothing to end")
    steps["begin"]()


def test_a_step_that_was_cut_off_is_carried_out_again(files: tuple[Path, Path]) -> None:
    certificate, key = files
    before = certificate.read_bytes()
    agent_ca_rotation.begin(certificate, key, now=NOW)
    made = agent_ca_rotation.next_key(key).read_bytes()
    certificate.write_bytes(before)  # as if the key had been made and nothing else
    with pytest.raises(CaError, match="not the elliptic-curve key"):
        agent_ca_rotation.switch(certificate, key, now=NOW)
    agent_ca_rotation.begin(certificate, key, now=NOW)
    assert agent_ca_rotation.next_key(key).read_bytes() == made
    assert len(agent_ca.load(certificate, key).believed) == 2
    agent_ca_rotation.next_key(key).write_text("nonsense")
    with pytest.raises(CaError, match="begin again"):
        agent_ca_rotation.begin(certificate, key, now=NOW)


@pytest.mark.parametrize("arguments", [("begin", "--force"), ("switch", "--force")])
def test_force_goes_with_the_end_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    make_certificate(tmp_path)
    settings = settings_file(tmp_path, **(TLS | CA))
    assert main(["rotate-agent-ca", *arguments, "--config", str(settings)]) == 1
    assert "--force" in capsys.readouterr().err


def test_without_an_authority_a_new_one_time_token_brings_a_host_back(api: Api, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    kernel = FakeKernel(tmp_path / "one")
    machine = Machine(api.cloud, tmp_path / "one")
    try:
        (machine.root / "token").write_text(api.cloud.announce("one"))
        machine.start("agent")
        machine.reports_again()
        assert machine.credentials.certificate is not None
        settings_file(api.directory, listen_port=int(api.url.rpartition(":")[2]), **TLS)
        api.again()
        until(lambda: "auth.required" in (machine.root / "agent.log").read_text())
        (machine.root / "token").write_text(api.cloud.operator.post("/v1/hosts/one:reenroll").json()["enroll_token"])
        machine.reports_again()
        assert machine.credentials.certificate is None
    finally:
        machine.end()
        kernel.close()
