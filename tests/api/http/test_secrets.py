# SPDX-License-Identifier: Apache-2.0
"""A secret is answered once: repeating the request makes no second secret and points to the first one."""

import json
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base

from tests.api.http.cloud import Caller, Cloud
from vgpumgr.wire.problem import Code

TOKEN = {"role": "operator"}
REQUESTS: list[tuple[str, Any, str]] = [
    ("/v1/tokens", TOKEN, "secret"),
    ("/v1/hosts", {"name": "h1"}, "enroll_token"),
    ("/v1/hosts/h0:reenroll", None, "enroll_token"),
]


def stored(database: Database) -> str:
    """Returns the content of all tables."""

    def read(session: Any) -> str:
        found = [session.execute(text(f"SELECT * FROM {table.name}")) for table in Base.metadata.sorted_tables]
        return json.dumps([[list(row) for row in rows] for rows in found], default=str)

    return database.run(read, read_only=True)


@pytest.mark.parametrize(("path", "body", "member"), REQUESTS)
def test_the_same_key_gets_no_second_secret(cloud: Cloud, path: str, body: Any, member: str) -> None:
    cloud.operator.post("/v1/hosts", {"name": "h0"})
    key = {"Idempotency-Key": "order-4711"}
    first = cloud.operator(method := "POST", path, body, headers=key)
    secret = first.json()[member]
    assert first.is_success
    before = stored(cloud.database)
    said = cloud.operator.refused(Code.SECRET_SHOWN, method, path, body, headers=key)
    made = f"token {first.json()['id']}" if path == "/v1/tokens" else f"host {first.json()['name']}"
    assert [(reason.code, reason.detail) for reason in said.reasons] == [("secret.shown", made)]
    assert stored(cloud.database) == before
    assert secret not in before
    assert secret not in said.model_dump_json()
    # The first secret is the valid one.
    if path == "/v1/tokens":
        assert Caller(cloud.http, secret).get("/v1/tenants")["items"] == []
        assert first.headers["location"] == f"/v1/tokens/{first.json()['id']}"
        cloud.operator.refused(Code.IDEMPOTENCY_MISMATCH, method, path, {"role": "viewer"}, headers=key)
    else:
        said = {"agent_version": "1", "boot_id": str(uuid4())}
        enrolled = Caller(cloud.http, secret).post("/v1/enroll", said, status=200)
        assert enrolled["name"] == first.json()["name"]


@pytest.mark.parametrize(("path", "body", "member"), REQUESTS)
def test_another_key_and_none_make_another_secret(cloud: Cloud, path: str, body: Any, member: str) -> None:
    cloud.operator.post("/v1/hosts", {"name": "h0"})
    secrets = set()
    for number, key in enumerate(({"Idempotency-Key": "a"}, {"Idempotency-Key": "b"}, {}, {})):
        wanted = {"name": f"x{number}"} if path == "/v1/hosts" else body
        secrets.add(cloud.operator.post(path, wanted, headers=key, status=cloud_status(path))[member])
    assert len(secrets) == 4


def test_a_refused_request_leaves_its_key_unused(cloud: Cloud) -> None:
    key = {"Idempotency-Key": "k"}
    cloud.operator.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/hosts/h1:reenroll", headers=key)
    cloud.operator.post("/v1/hosts", {"name": "h1"})
    assert cloud.operator.post("/v1/hosts/h1:reenroll", headers=key, status=200)["enroll_token"]


def test_a_one_time_token_enrols_once(cloud: Cloud) -> None:
    once = Caller(cloud.http, cloud.operator.post("/v1/hosts", {"name": "h1"})["enroll_token"])
    said = {"agent_version": "1", "boot_id": str(uuid4())}
    agent = Caller(cloud.http, once.post("/v1/enroll", said, status=200, headers={"Idempotency-Key": "k"})["token"])
    once.refused(Code.AUTH_INVALID, "POST", "/v1/enroll", said, headers={"Idempotency-Key": "k"})
    assert agent.get("/v1/hosts/h1/desired")["slices"] == []


def cloud_status(path: str) -> int:
    return 200 if path.endswith(":reenroll") else 201
