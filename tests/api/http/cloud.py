# SPDX-License-Identifier: Apache-2.0
"""A small cloud: the real application on a real database, with operators, tenants and hosts as its callers."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any
from uuid import UUID, uuid4

from fastapi import FastAPI
from httpx2 import Response
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from vgpumgr_api.actors import local_operator
from vgpumgr_api.app import create_app
from vgpumgr_api.auth import tokens
from vgpumgr_api.db.database import Database

from vgpumgr.wire.fleet import Desired, Report, ReportedGpu, ReportedSlice, ReportedType
from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code, Problem
from vgpumgr.wire.resources import TokenCreate, TokenRole

GIB = 1 << 30
GPU = "0000:03:00.0"
MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}

ANSWER_S = 60.0
"""A request that takes longer counts as never answered; the client itself would wait for ever."""


class Answering:
    """Makes a request fail if the application does not answer it in time."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(ANSWER_S) as bound:
                await self._app(scope, receive, send)
        except TimeoutError:
            if not bound.expired():
                raise
            raise AssertionError(f"{scope['method']} {scope['path']} was not answered within {ANSWER_S:g} s") from None


class Caller:
    """A client with or without a token. It checks what all answers have in common."""

    def __init__(self, http: TestClient, token: str | None) -> None:
        self.http = http
        self.token = token

    def __call__(
        self, method: str, path: str, json: Any = None, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Response:
        sent = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        sent |= MERGE_PATCH if method == "PATCH" else {}
        response = self.http.request(method, path, json=json, headers=sent | dict(headers or {}), **options)
        assert response.headers["x-request-id"]
        if response.status_code >= 400:
            said = Problem.model_validate_json(response.content)
            assert response.headers["content-type"] == MEDIA_TYPE
            assert response.status_code == said.status == STATUS[Code(said.code)], response.text
        return response

    def get(self, path: str) -> Any:
        return self.ok("GET", path, 200)

    def post(self, path: str, json: Any = None, *, status: int = 201, **options: Any) -> Any:
        return self.ok("POST", path, status, json, **options)

    def patch(self, path: str, json: Any) -> Any:
        """Patches like a careful client: with the ETag of what it read."""
        etag = self("GET", path).headers["etag"]
        return self.ok("PATCH", path, 200, json, headers={"If-Match": etag})

    def delete(self, path: str, *, status: int = 204) -> Any:
        etag = self("GET", path).headers.get("etag")
        return self.ok("DELETE", path, status, headers={"If-Match": etag} if etag else None)

    def ok(self, method: str, path: str, status: int, json: Any = None, **options: Any) -> Any:
        response = self(method, path, json, **options)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def refused(self, code: Code, method: str, path: str, json: Any = None, **options: Any) -> Problem:
        response = self(method, path, json, **options)
        assert response.status_code >= 400, response.text
        said = Problem.model_validate_json(response.content)
        assert said.code == code, response.text
        return said


class Host(Caller):
    """A host's agent; it has the devices that it was last told to have."""

    def __init__(self, http: TestClient, token: str, host_id: UUID, name: str) -> None:
        super().__init__(http, token)
        self.id = host_id
        self.name = name
        self.boot_id = uuid4()
        self.agent_epoch = 1
        self.seq = 0
        self.gpu_members: dict[str, Any] = {}
        """Extra members for each of its GPUs in reports."""

    def copied(self) -> "Host":
        """A second machine with a copy of this one's disk, after its start."""
        other = copy(self)
        other.boot_id, other.agent_epoch, other.seq = uuid4(), self.agent_epoch + 1, 0
        return other

    def desired(self) -> Desired:
        return Desired.model_validate(self.get(f"/v1/hosts/{self.id}/desired"))

    def report(self, *, gpus: Sequence[str] = (GPU,), obey: bool = True) -> bool:
        """Reports that everything is as desired. `obey` False: reports that nothing is, like after a boot."""
        wanted = self.desired()
        self.seq += 1
        types = [ReportedType(id=f"vgpumgr-{gib}g", mem_bytes=gib * GIB) for gib in (1, 2, 4)]
        seen = [(each.id, each.generation, obey) for each in wanted.slices]
        seen += [(each.id, each.generation, False) for each in wanted.tombstones]
        said = Report(
            boot_id=self.boot_id,
            agent_epoch=self.agent_epoch,
            seq=self.seq,
            agent_version="1",
            desired_epoch=wanted.epoch,
            desired_generation=wanted.generation,
            gpus=[
                ReportedGpu(
                    address=address,
                    engine="soft",
                    backend="kmod",
                    mem_bytes=8 * GIB,
                    timeslice_min_us=100,
                    max_chunk_us=100,
                    types=types,
                    **self.gpu_members,
                )
                for address in gpus
            ],
            groups=[],
            slices=[
                ReportedSlice(
                    id=slice_id,
                    generation=generation,
                    present=present,
                    open=False,
                    vm_uuid=None,
                    applied_permille=100 if present else None,
                    run_ns=0,
                    items=0,
                )
                for slice_id, generation, present in seen
            ],
            refusals=[],
        )
        answer = self.post(f"/v1/hosts/{self.id}/report", said.model_dump(mode="json"), status=200)
        accepted: bool = answer["accepted"]
        return accepted


class Cloud:
    """Starts with an operator and nothing else."""

    def __init__(self, database: Database, app: FastAPI | None = None) -> None:
        self.database = database
        served = app or create_app(database)
        self.http = TestClient(Answering(served))
        self.http.app = served
        wanted = TokenCreate(role=TokenRole.OPERATOR)
        first = database.run(lambda session: tokens.create_token(session, local_operator("tests"), wanted))
        self.operator = Caller(self.http, first.secret)
        wanted = TokenCreate(role=TokenRole.ADMIN)
        local = local_operator("tests", TokenRole.ADMIN)
        self.admin = Caller(self.http, database.run(lambda session: tokens.create_token(session, local, wanted)).secret)
        self.nobody = Caller(self.http, None)

    def tenant(self, name: str, *, account: str | None = None, **quota: int) -> Caller:
        """Makes a tenant with quota; returns a caller with its token."""
        self.operator.post("/v1/tenants", {"name": name, "account": account})
        if quota:
            self.operator.patch(f"/v1/quotas/{name}", quota)
        return self.token(role="tenant", subject=name)

    def token(self, **wanted: Any) -> Caller:
        return Caller(self.http, self.operator.post("/v1/tokens", wanted)["secret"])

    def profile(self, name: str, share_permille: int, *, mem_bytes: int = GIB, mode: str = "fair") -> None:
        wanted = {"name": name, "share_permille": share_permille, "mem_bytes": mem_bytes, "mode": mode}
        self.operator.post("/v1/profiles", wanted)

    def host(self, name: str, *, gpus: Sequence[str] = (GPU,)) -> Host:
        """Makes a host that has enrolled and reported its GPUs."""
        announced = self.operator.post("/v1/hosts", {"name": name})
        once = Caller(self.http, announced["enroll_token"])
        enrolled = once.post("/v1/enroll", {"agent_version": "1", "boot_id": str(uuid4())}, status=200)
        host = Host(self.http, enrolled["token"], UUID(enrolled["host_id"]), name)
        assert host.report(gpus=gpus)
        return host
