# SPDX-License-Identifier: Apache-2.0
"""An API process with TLS and an authority for agents, and hosts that connect to it with their certificates."""

import contextlib
import ssl
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
from vgpumgr_agent.identity import new_key
from vgpumgr_api.auth import agent_ca
from vgpumgr_api.db.database import Database
from vgpumgr_api.fleet import agents

from tests.api.http.process import Server, serving
from vgpumgr.wire.fleet import Enroll, Enrolled

TLS = {"tls_certificate": "crt.pem", "tls_key": "key.pem"}
CA = {"agent_ca_certificate": "agents.pem", "agent_ca_key": "agents.key"}


@dataclass
class Cloud:
    """`operator`: a connection of the first operator."""

    server: Server
    directory: Path
    operator: httpx2.Client

    def connect(self, *, token: str | None = None, certificate: Path | None = None) -> httpx2.Client:
        """A connection with the given certificate; the caller need not close it."""
        trusting = ssl.create_default_context(cafile=self.directory / "crt.pem")
        if certificate is not None:
            trusting.load_cert_chain(certificate)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(
            base_url=self.server.url, verify=trusting, headers=headers, timeout=60, trust_env=False, http2=False
        )

    def announce(self, name: str) -> str:
        answer = self.operator.post("/v1/hosts", json={"name": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["enroll_token"])

    def enrol(self, token: str, csr: str | None, **headers: str) -> httpx2.Response:
        said = {"agent_version": "1", "boot_id": str(uuid4()), "csr": csr}
        return self.connect(token=token).post("/v1/enroll", json=said, headers=headers)

    def enrol_for_a_token(self, token: str) -> Enrolled:
        """Enrols a host for a token, like before there was an authority."""
        said = Enroll(agent_version="1", boot_id=uuid4())
        database = Database(tomllib.loads((self.directory / "api.toml").read_text())["database"])
        with contextlib.closing(database):
            return database.run(lambda session: agents.enroll(session, token, said))

    def host(self, name: str) -> "Host":
        """A host that enrolled with its own key."""
        key, csr = new_key()
        answer = self.enrol(self.announce(name), csr)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["token"] is None
        return Host(self, name, UUID(said["host_id"]), key, said["certificate"]["certificate"])

    def revoke(self, host: "Host", how: str) -> None:
        """Ends a host's credential in the way `how`."""
        if how == "token deleted":
            [own] = [each for each in self.operator.get("/v1/tokens").json()["items"] if each["subject"] == host.name]
            assert self.operator.delete(f"/v1/tokens/{own['id']}").status_code == 204
        elif how == "re-enrolled":
            assert self.operator.post(f"/v1/hosts/{host.name}:reenroll").status_code == 200
        else:
            self.fence(host.name)

    def fence(self, name: str) -> None:
        etag = self.operator.get(f"/v1/hosts/{name}").headers["etag"]
        said = {"confirm": name, "force": True}
        answer = self.operator.post(f"/v1/hosts/{name}:fence", json=said, headers={"If-Match": etag})
        assert answer.status_code == 200, answer.text


@dataclass
class Host:
    cloud: Cloud
    name: str
    id: UUID
    key: str
    certificate: str

    def connect(self) -> httpx2.Client:
        path = self.cloud.directory / f"{self.name}-{uuid4()}.pem"
        path.write_text(self.key + self.certificate)
        return self.cloud.connect(certificate=path)

    def desired(self, http: httpx2.Client | None = None) -> str:
        return outcome((http or self.connect()).get(f"/v1/hosts/{self.name}/desired"))

    def aged(self, **changes: Any) -> "Host":
        """The same host with a certificate that our authority made at another time or with other contents."""
        ca = agent_ca.load(self.cloud.directory / "agents.pem", self.cloud.directory / "agents.key")
        said = agent_ca.peer(ssl.PEM_cert_to_DER_cert(self.certificate))
        assert said is not None
        key, csr = new_key()
        named: dict[str, Any] = {"host_id": said.host_id, "credential": said.credential, "now": datetime.now(UTC)}
        made, _ = ca.sign(csr, **(named | changes))
        return Host(self.cloud, self.name, self.id, key, made)


def outcome(answer: httpx2.Response) -> str:
    return "ok" if answer.status_code < 300 else str(answer.json()["code"])


def make_certificate(directory: Path, *, name: str = "crt.pem", key: str = "key.pem") -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", directory / key, "-out", directory / name]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)


@contextlib.contextmanager
def certifying(directory: Path, **settings: str | int) -> Iterator[Cloud]:
    make_certificate(directory)
    agent_ca.create(directory / "agents.pem", directory / "agents.key", now=datetime.now(UTC))
    with serving(directory, **(TLS | CA | settings)) as server:
        cloud = Cloud(server, directory, httpx2.Client())
        cloud.operator = cloud.connect(token=server.token)
        yield cloud
