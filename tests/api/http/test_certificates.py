# SPDX-License-Identifier: Apache-2.0
"""Agents with certificates: a real API process, real TLS sockets, real keys."""

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from vgpumgr_agent.identity import new_key
from vgpumgr_api.auth import agent_ca
from vgpumgr_api.auth.certificates import WORTH
from vgpumgr_api.events.allowance import EVENTS_AN_HOUR
from vgpumgr_api.main import main

from tests.api.http.process import command, initialised, serving, settings_file
from tests.api.http.tls import CA, TLS, Cloud, Host, certifying, make_certificate, outcome
from vgpumgr.wire.problem import Code

# Certificates are checked and made above the database layer; services/test_enrolment enrols on both engines.
pytestmark = pytest.mark.sqlite_long

OLD = datetime.now(UTC) - timedelta(days=9)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    directory = tmp_path_factory.mktemp("api")
    url = f"sqlite:///{directory}/vgpumgr.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql").create("certificates")
    with certifying(directory, database=url) as made:
        yield made


@pytest.fixture
def cloud(server: Cloud) -> Iterator[Cloud]:
    """There are no hosts before or after the test."""
    yield server
    for host in server.operator.get("/v1/hosts").json()["items"]:
        etag = {"If-Match": server.operator.get(f"/v1/hosts/{host['name']}").headers["etag"]}
        assert server.operator.delete(f"/v1/hosts/{host['name']}", headers=etag).status_code == 204


def test_a_certificate_speaks_for_its_own_host_and_for_nothing_else(cloud: Cloud) -> None:
    one, two = cloud.host("one"), cloud.host("two")
    with one.connect() as http:
        for name in (one.name, str(one.id)):
            assert outcome(http.get(f"/v1/hosts/{name}/desired")) == "ok"
        for name in (two.name, str(two.id), "nobody", str(uuid4())):
            assert outcome(http.get(f"/v1/hosts/{name}/desired")) == Code.OBJECT_UNKNOWN
            csr = {"csr": new_key()[1]}
            assert outcome(http.post(f"/v1/hosts/{name}/certificate", json=csr)) == Code.OBJECT_UNKNOWN
        for path in ("/v1/hosts", "/v1/slices", "/v1/tokens", "/v1/audit"):
            assert outcome(http.get(path)) == Code.PERMISSION_DENIED
        # If a request also has a token, the token decides.
        bearer = {"Authorization": f"Bearer {cloud.server.token}"}
        assert outcome(http.get("/v1/hosts", headers=bearer)) == "ok"
    assert outcome(cloud.connect().get("/v1/hosts/one/desired")) == Code.AUTH_REQUIRED
    events = cloud.operator.get("/v1/events").json()["items"]
    assert [each["actor"] for each in events if each["kind"] == "host.enrolled"][-2:] == ["host:one", "host:two"]


@pytest.mark.parametrize(
    ("how", "code"),
    [("token deleted", Code.AUTH_INVALID), ("re-enrolled", Code.AUTH_INVALID), ("fenced", Code.HOST_FENCED)],
)
def test_what_ends_the_credential_ends_every_certificate_at_once(cloud: Cloud, how: str, code: Code) -> None:
    host = cloud.host("one")
    renewed, expired = host.aged(), host.aged(now=OLD)
    with host.connect() as http:
        assert host.desired(http) == "ok"
        assert (renewed.desired(), expired.desired()) == ("ok", Code.AUTH_EXPIRED)
        cloud.revoke(host, how)
        assert host.desired(http) == code
        assert outcome(http.post("/v1/hosts/one/certificate", json={"csr": new_key()[1]})) == code
    assert (renewed.desired(), expired.desired()) == (code, code)


def test_an_expired_certificate_is_told_so_and_renews_nothing(cloud: Cloud) -> None:
    host = cloud.host("one")
    expired = host.aged(now=OLD)
    with expired.connect() as http:
        assert outcome(http.post("/v1/hosts/one/certificate", json={"csr": new_key()[1]})) == Code.AUTH_EXPIRED
    # The clock of the machine that signed it may be ahead of ours.
    assert host.aged(now=datetime.now(UTC) + timedelta(hours=1)).desired() == "ok"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_handshake_makes_no_ticket_that_nobody_uses(cloud: Cloud, version: ssl.TLSVersion) -> None:
    trusting = ssl.create_default_context(cafile=cloud.directory / "crt.pem")
    trusting.minimum_version = trusting.maximum_version = version
    host, _, port = cloud.server.url.removeprefix("https://").partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusting.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(b"GET /v1/health/live HTTP/1.1\r\nHost: api\r\n\r\n")
        assert connection.recv(4096)  # a ticket would have arrived before this
        assert connection.session is not None
        assert not connection.session.has_ticket


def test_certificates_of_others_get_nowhere(cloud: Cloud, tmp_path: Path) -> None:
    one, two = cloud.host("one"), cloud.host("two")
    said = agent_ca.peer(_der(two))
    assert said is not None
    assert one.aged(credential=said.credential).desired() == Code.AUTH_INVALID
    assert one.aged(credential=uuid4()).desired() == Code.AUTH_INVALID
    assert one.aged(host_id=uuid4()).desired() == Code.AUTH_INVALID
    other = tmp_path / "other"
    other.mkdir()
    agent_ca.create(other / "agents.pem", other / "agents.key", now=datetime.now(UTC))
    ca = agent_ca.load(other / "agents.pem", other / "agents.key")
    key, csr = new_key()
    made, _ = ca.sign(csr, host_id=one.id, credential=said.credential, now=datetime.now(UTC))
    with pytest.raises(httpx2.TransportError):
        Host(cloud, "one", one.id, key, made).desired()
    # The certificate of our authority itself belongs to no host.
    own = Host(cloud, "one", one.id, (cloud.directory / "agents.key").read_text(), "")
    own.certificate = (cloud.directory / "agents.pem").read_text()
    # OpenSSL itself may reject an authority as a client.
    with contextlib.suppress(httpx2.TransportError):
        assert own.desired() == Code.AUTH_REQUIRED


def _der(host: Host) -> bytes:
    return ssl.PEM_cert_to_DER_cert(host.certificate)


def test_renewing_gives_another_certificate_and_leaves_the_old_one_its_time(cloud: Cloud) -> None:
    host = cloud.host("one")
    key, csr = new_key()
    with host.connect() as http:
        said = http.post("/v1/hosts/one/certificate", json={"csr": csr}).json()
    life = datetime.fromisoformat(said["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=71) < life <= timedelta(hours=72)
    assert said["renew_after_s"] == 36 * 3600
    renewed = Host(cloud, "one", host.id, key, said["certificate"])
    assert (renewed.desired(), host.desired()) == ("ok", "ok")
    assert len(cloud.operator.get("/v1/tokens").json()["items"]) == 2  # the operator's connection and the host's


def test_a_host_that_wants_ever_more_certificates_is_held_up(cloud: Cloud) -> None:
    host, other = cloud.host("one"), cloud.host("two")
    body = {"csr": new_key()[1]}
    with host.connect() as http:
        answers = [outcome(http.post("/v1/hosts/one/certificate", json=body)) for _ in range(70)]
    made = answers.count("ok")
    assert answers == ["ok"] * made + [Code.RATE_EXCEEDED] * (70 - made)
    assert EVENTS_AN_HOUR // WORTH <= made < 70
    with other.connect() as http:
        assert outcome(http.post("/v1/hosts/two/certificate", json=body)) == "ok"
    assert host.desired() == "ok"


def test_a_host_with_a_token_moves_to_certificates_and_the_token_ends_when_that_has_worked(cloud: Cloud) -> None:
    said = cloud.enrol_for_a_token(cloud.announce("one"))
    assert said.certificate is None
    token = cloud.connect(token=said.token)
    assert outcome(token.get("/v1/hosts/one/desired")) == "ok"
    key, csr = new_key()
    first = token.post("/v1/hosts/one/certificate", json={"csr": csr}).json()["certificate"]
    host = Host(cloud, "one", said.host_id, key, first)
    assert (host.desired(), outcome(token.get("/v1/hosts/one/desired"))) == ("ok", "ok")
    with host.connect() as http:
        assert outcome(http.post("/v1/hosts/one/certificate", json={"csr": new_key()[1]})) == "ok"
    assert (host.desired(), outcome(token.get("/v1/hosts/one/desired"))) == ("ok", Code.AUTH_INVALID)
    cloud.fence("one")
    assert (host.desired(), outcome(token.get("/v1/hosts/one/desired"))) == (Code.HOST_FENCED, Code.HOST_FENCED)


def test_a_fence_is_told_to_a_certificate_that_still_has_a_token_beside_it(cloud: Cloud) -> None:
    said = cloud.enrol_for_a_token(cloud.announce("one"))
    key, csr = new_key()
    token = cloud.connect(token=said.token)
    first = token.post("/v1/hosts/one/certificate", json={"csr": csr}).json()["certificate"]
    cloud.fence("one")
    host = Host(cloud, "one", said.host_id, key, first)
    assert (host.desired(), outcome(token.get("/v1/hosts/one/desired"))) == (Code.HOST_FENCED, Code.HOST_FENCED)


def requests() -> dict[str, Callable[[Path], str | None]]:
    def made(options: str) -> Callable[[Path], str]:
        def make(directory: Path) -> str:
            command = f"openssl req -new -nodes -subj /CN=x -keyout {directory}/x.key {options}".split()
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout

        return make

    good = new_key()[1]
    lines = good.splitlines()
    other = new_key()[1].splitlines()
    return {
        "none": lambda _: None,
        "nothing": lambda _: "",
        "no PEM": lambda _: "x" * 100,
        "a certificate": made("-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1"),
        "cut off": lambda _: "\n".join([*lines[:2], lines[-1]]),
        "another's signature": lambda _: "\n".join([*lines[:-2], other[-2], lines[-1]]),
        "a weak key": made("-newkey rsa:1024"),
        "an odd curve": made("-newkey ec -pkeyopt ec_paramgen_curve:secp256k1"),
        "too long": lambda _: good + "x" * 9000,
    }


def test_senseless_requests_are_refused_and_cost_no_token(cloud: Cloud, tmp_path: Path) -> None:
    once = cloud.announce("one")
    for what, make in requests().items():
        answer = cloud.enrol(once, make(tmp_path))
        assert outcome(answer) == Code.FIELD_INVALID, what
        assert answer.json()["reasons"][0]["field"] == "$.csr", what
    assert outcome(cloud.enrol(once, new_key()[1])) == "ok"
    assert outcome(cloud.enrol(once, new_key()[1])) == Code.AUTH_INVALID


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("Via", "1.1 proxy"),
        ("Forwarded", "for=192.0.2.1;proto=https"),
        ("X-Forwarded-For", "192.0.2.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "192.0.2.1"),
    ],
)
def test_behind_a_proxy_that_ends_tls_no_host_enrols_and_its_token_stays_good(
    cloud: Cloud, header: str, said: str
) -> None:
    cloud.host("one")
    again = cloud.operator.post("/v1/hosts/one:reenroll").json()["enroll_token"]
    for once in (again, cloud.announce("two")):
        answer = cloud.enrol(once, new_key()[1], **{header: said})
        assert outcome(answer) == Code.FIELD_INVALID
        assert answer.json()["reasons"][0]["field"] == f"header.{header.lower()}"
        assert "agent_ca_certificate" in answer.json()["detail"]
        assert outcome(cloud.enrol(once, new_key()[1])) == "ok"


def test_without_an_authority_hosts_get_tokens(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    with serving(tmp_path, **TLS) as server:
        cloud = Cloud(server, tmp_path, httpx2.Client())
        cloud.operator = cloud.connect(token=server.token)
        said = cloud.enrol(cloud.announce("one"), new_key()[1], Via="1.1 proxy").json()
        assert said["certificate"] is None
        with cloud.connect(token=said["token"]) as http:
            assert outcome(http.get("/v1/hosts/one/desired")) == "ok"
            answer = http.post("/v1/hosts/one/certificate", json={"csr": new_key()[1]})
            assert outcome(answer) == Code.CA_ABSENT


def test_the_command_makes_an_authority_once(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    settings = settings_file(tmp_path, **(TLS | CA))
    initialised(settings)
    missing = command("serve", settings=settings)
    assert missing.returncode == 1
    assert "create-agent-ca" in missing.stderr
    assert command("create-agent-ca", settings=settings).returncode == 0
    certificate, key = tmp_path / "agents.pem", tmp_path / "agents.key"
    assert (key.stat().st_mode & 0o777, certificate.stat().st_mode & 0o777) == (0o600, 0o644)
    before = key.read_bytes()
    again = command("create-agent-ca", settings=settings)
    assert (again.returncode, key.read_bytes()) == (1, before)
    assert again.stderr == f"vgpumgr-api: {key} exists; move the files of that authority away first\n"
    certificate.unlink()
    make_certificate(tmp_path, name="agents.pem", key="another.key")
    wrong = command("serve", settings=settings)
    assert wrong.returncode == 1
    assert "not the elliptic-curve key" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"agent_ca_key": "a"} | TLS, "agent_ca_certificate and agent_ca_key"),
        (CA, "agent_ca_certificate"),
        (CA | TLS | {"agent_certificate_life_s": 599}, "agent_certificate_life_s"),
        (CA | TLS | {"agent_certificate_life_s": 30 * 86400 + 1}, "agent_certificate_life_s"),
        ({}, "agent_ca_certificate and agent_ca_key"),
    ],
)
def test_settings_that_make_no_sense_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, str | int], named: str
) -> None:
    assert main(["create-agent-ca", "--config", str(settings_file(tmp_path, **settings))]) == 1
    said = capsys.readouterr().err
    assert named in said
    assert len(said.splitlines()) == 1
