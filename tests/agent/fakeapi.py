# SPDX-License-Identifier: Apache-2.0
"""A control plane for one host: in this process as an `Api`, and over HTTP for an agent in another one."""

import contextlib
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from vgpumgr_agent.api import ApiAwayError, ApiRefusedError

from vgpumgr.wire.fleet import (
    Desired,
    DesiredGroup,
    DesiredSlice,
    Enroll,
    Enrolled,
    Heartbeat,
    HeartbeatTaken,
    HostCertificate,
    Report,
    Reported,
    Tombstone,
)

GPU = "0000:00:10.0"


def claim(uuid: UUID, *, vm: UUID | None, tenant: str = "blue", share: int = 300, **changes: Any) -> DesiredSlice:
    values: dict[str, Any] = {"mdev_type": "vgpumgr-mem16m", "gpu": GPU, "generation": 1, **changes}
    return DesiredSlice(id=uuid, tenant=tenant, vm_uuid=vm, weight=share, **values)


def group(tenant: str = "blue", share: int = 300, **changes: Any) -> DesiredGroup:
    return DesiredGroup(**{"gpu": GPU, "tenant": tenant, "weight": share, "timeslice_us": 1000, **changes})


class FakeApi:
    """What the API knows about one host; a test changes `document` through `set`.

    `gives_certificates` None means that this API does not use TLS. `requests` are the certificate requests.
    `patience_s` is how long a caller may wait for news; use 0 in a test that runs the agent's steps itself.
    """

    def __init__(self, *, patience_s: float = 1) -> None:
        self.patience_s = patience_s
        self.changed = threading.Condition()
        self.renew_within_s: int | None = None
        self.document = Desired(
            host_id=uuid4(), epoch=uuid4(), epoch_confirmed=True, generation=1, groups=[], slices=[], tombstones=[]
        )
        self.host_id = self.document.host_id
        self.away = False
        self.token = ""
        self.used = ""
        self.one_time_tokens = {"one-time"}
        self.reports: list[Report] = []
        self.beats: list[Heartbeat] = []
        self.asked = 0
        self.enrolments = 0
        self.claims_of: list[UUID | None] = []
        self.gives_certificates: bool | None = None
        self.certificates = 0
        self.requests: list[str] = []

    # ---- for tests

    def set(self, **changes: Any) -> None:
        """Change the desired state; its generation goes up by one unless the test gives one."""
        with self.changed:
            changes.setdefault("generation", self.document.generation + 1)
            self.document = self.document.model_copy(update=changes)
            self.changed.notify_all()

    def delete(self, uuid: UUID, *, groups: list[DesiredGroup]) -> None:
        """Turn a claim into a tombstone."""
        left = [each for each in self.document.slices if each.id != uuid]
        tombstone = Tombstone(id=uuid, generation=self.document.generation + 1)
        self.set(slices=left, groups=groups, tombstones=[*self.document.tombstones, tombstone])

    def last(self) -> Report:
        with self.changed:
            return self.reports[-1]

    def wait_report(self, condition: Any, timeout_s: float = 10) -> Report:
        """Return the first report for which the condition is true."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while True:
                for report in self.reports:
                    if condition(report):
                        return report
                left_s = deadline - time.monotonic()
                assert left_s > 0, self.reports[-1:]
                self.changed.wait(left_s)

    # ---- Api

    def enroll(self, one_time_token: str, enroll: Enroll) -> Enrolled:
        self._there()
        self.enrolments += 1
        self.claims_of.append(enroll.claims_of)
        if one_time_token not in self.one_time_tokens:
            raise ApiRefusedError("auth.invalid", "the token is not valid; ask for a new one")
        self.one_time_tokens.discard(one_time_token)
        self.token = f"own-{uuid4()}"
        if enroll.csr is None or not self.gives_certificates:
            return Enrolled(host_id=self.host_id, name="host-1", token=self.token)
        made = self._certificate(enroll.csr)
        return Enrolled(host_id=self.host_id, name="host-1", token=None, certificate=made)

    @property
    def encrypted(self) -> bool:
        return self.gives_certificates is not None

    def heed_ca_file(self) -> None:
        """This API has no certificate authority."""

    def use(self, token: str | None, certificate_file: Path | None = None) -> None:
        self.used = (token or "") if certificate_file is None else certificate_file.read_text()

    def renew(self, host: UUID, csr: str) -> HostCertificate:
        self._is_host(host)
        self._there()
        self._authorised()
        return self._certificate(csr)

    def _certificate(self, csr: str) -> HostCertificate:
        """The certificate may be any text, because nothing in these tests checks it."""
        self.requests.append(csr)
        if not self.gives_certificates:
            raise ApiRefusedError("ca.absent", "there is no authority for agents")
        self.certificates += 1
        return HostCertificate(
            certificate=f"certificate {self.certificates}\n",
            expires_at=datetime.now(UTC) + timedelta(seconds=2000),
            renew_after_s=1000,
        )

    def desired(
        self,
        host: UUID,
        *,
        epoch: UUID | None = None,
        generation: int | None = None,
        wait_s: int = 0,
    ) -> Desired | None:
        self._is_host(host)
        self._there()
        self._authorised()
        deadline = time.monotonic() + min(wait_s, self.patience_s)
        with self.changed:
            self.asked += 1
            while (self.document.epoch, self.document.generation) == (epoch, generation):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self.changed.wait(left_s)
                self._there()
            return self.document

    def bind(self, host: UUID, slice_id: UUID, vm_uuid: UUID) -> int:
        self._is_host(host)
        self._there()
        found = next((each for each in self.document.slices if each.id == slice_id), None)
        if found is None:
            raise ApiRefusedError("object.unknown", "no such slice")
        if found.vm_uuid not in (None, vm_uuid):
            raise ApiRefusedError("slice.bound", "bound to another VM")
        bound = found.model_copy(update={"vm_uuid": vm_uuid, "generation": found.generation + 1})
        self.set(slices=[bound if each.id == slice_id else each for each in self.document.slices])
        return bound.generation

    def report(self, host: UUID, report: Report) -> Reported:
        self._is_host(host)
        self._there()
        self._authorised()
        with self.changed:
            self.reports.append(report)
            self.changed.notify_all()
        return Reported(accepted=True, renew_within_s=self.renew_within_s)

    def heartbeat(self, host: UUID, beat: Heartbeat) -> HeartbeatTaken:
        self._is_host(host)
        self._there()
        self._authorised()
        with self.changed:
            self.beats.append(beat)
            last = self.reports[-1]
            self.changed.notify_all()
        same = beat == Heartbeat(**last.model_dump(include=set(Heartbeat.model_fields)))
        return HeartbeatTaken(accepted=same, renew_within_s=self.renew_within_s)

    def _is_host(self, host: UUID) -> None:
        if host != self.host_id:
            raise ApiRefusedError("permission.denied", "not your host")

    def _there(self) -> None:
        if self.away:
            raise ApiAwayError("the API is away")

    def _authorised(self) -> None:
        if self.used != self.token and not self.used.endswith(f"certificate {self.certificates}\n"):
            raise ApiRefusedError("auth.invalid", "the token is not valid")


class HttpServer:
    """A FakeApi over HTTP, on a port of its own."""

    def __init__(self, api: FakeApi) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do()

            def do_POST(self) -> None:
                self._do()

            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    status, answer = _route(api, self.path, self.headers.get("Authorization", ""), body)
                except ApiAwayError:
                    self.close_connection = True
                    return
                except ApiRefusedError as error:
                    status = 401 if error.code.startswith("auth.") else 409
                    answer = json.dumps(
                        {"title": "", "status": status, "detail": str(error), "code": error.code, "request_id": "r"}
                    ).encode()
                with contextlib.suppress(OSError):  # the agent was killed
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name in the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _route(api: FakeApi, path: str, authorization: str, body: bytes) -> tuple[int, bytes]:
    token = authorization.removeprefix("Bearer ")
    if path == "/v1/enroll":
        return 200, api.enroll(token, Enroll.model_validate_json(body)).model_dump_json().encode()
    api.used = token
    host = api.host_id
    if path.endswith(":bind"):
        uuid = UUID(path.rsplit("/", maxsplit=1)[-1].removesuffix(":bind"))
        api.bind(host, uuid, UUID(json.loads(body)["vm_uuid"]))
        return 200, json.dumps(_slice(api, uuid)).encode()
    if path.endswith("/report"):
        return 200, api.report(host, Report.model_validate_json(body)).model_dump_json().encode()
    if path.endswith("/heartbeat"):
        return 200, api.heartbeat(host, Heartbeat.model_validate_json(body)).model_dump_json().encode()
    query = dict(part.split("=") for part in path.partition("?")[2].split("&") if part)
    document = api.desired(
        host,
        epoch=UUID(query["epoch"]) if "epoch" in query else None,
        generation=int(query["generation"]) if "generation" in query else None,
        wait_s=int(query["wait_s"]),
    )
    return (204, b"") if document is None else (200, document.model_dump_json().encode())


def _slice(api: FakeApi, uuid: UUID) -> dict[str, Any]:
    found = next(each for each in api.document.slices if each.id == uuid)
    enforcement = {"requested_permille": 1, "applied_permille": None, "timeslice_us": 1000, "granularity_us": 1000}
    return {
        "id": str(uuid), "tenant": found.tenant, "profile": "p", "share_permille": 1, "mem_bytes": 1, "mode": "fair",
        "vm_uuid": str(found.vm_uuid), "host": "host-1", "gpu": found.gpu, "gpu_id": str(uuid),
        "mdev_type": found.mdev_type, "state": "claimed", "enforcement": {**enforcement, "semantics": "weight"},
        "observed": None, "generation": found.generation, "created_at": "2026-01-01T00:00:00Z",
        "state_since": "2026-01-01T00:00:00Z", "state_reason": "", "state_detail": "",
    }  # fmt: skip
