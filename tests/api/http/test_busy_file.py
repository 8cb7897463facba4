# SPDX-License-Identifier: Apache-2.0
"""Another process holds the lock of the SQLite file: writers are told to try again, readers do not notice."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from vgpumgr_api import admin
from vgpumgr_api.app import create_app
from vgpumgr_api.config import Config
from vgpumgr_api.db import database as database_module
from vgpumgr_api.db.database import Database

WAIT_S = 0.5
HOLD = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(file: Path) -> Iterator[None]:
    """Makes another process hold the lock until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate(timeout=60)


def test_writing_is_refused_in_time_and_done_once_the_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vgpumgr.db"
    url = f"sqlite:///{file}"
    token = admin.initialise(Config(database=url)).secret
    monkeypatch.setattr(database_module, "WAIT_S", WAIT_S)
    # Each attempt itself waits, however short the pauses between attempts are.
    monkeypatch.setattr(database_module, "random", SimpleNamespace(uniform=lambda *_: 0.0))
    with contextlib.closing(Database(url, serving=True)) as database:
        application = create_app(database)
        client = TestClient(application, headers={"Authorization": f"Bearer {token}"})
        said = {"headers": {"Idempotency-Key": "k"}, "json": {"name": "acme"}}
        read = client.get("/v1/events").json()["items"]
        application.state.feed.stop()  # event streams end at once
        with held(file):
            assert client.get("/v1/tenants").json()["items"] == []
            assert client.get("/v1/events").json()["items"] == read
            assert client.get("/v1/events/watch").status_code == 200
            begun_s = time.monotonic()
            answer = client.post("/v1/tenants", **said)
            assert time.monotonic() - begun_s >= WAIT_S, "it was tried"
            assert (answer.status_code, answer.json()["code"]) == (503, "database.busy")
            assert answer.headers["retry-after"] == "1"
            assert client.get("/v1/health").json() == {"status": "ok"}
        assert client.post("/v1/tenants", **said).status_code == 201
        assert [each["name"] for each in client.get("/v1/tenants").json()["items"]] == ["acme"]
