# SPDX-License-Identifier: Apache-2.0
"""The log: one JSON object per line if configured, caller and action of every request, and never a secret."""

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from sqlalchemy import text
from vgpumgr_api.actors import new_secret
from vgpumgr_api.app import create_app
from vgpumgr_api.config import ConfigError, load
from vgpumgr_api.db.database import Database
from vgpumgr_api.observe import statements
from vgpumgr_api.observe.logs import JsonLines, Lines, read_by_journal
from vgpumgr_api.observe.secrets import HIDDEN, hide

from tests.api.http.cloud import Cloud

# Log lines are written above the database layer.
pytestmark = pytest.mark.sqlite_long

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBsecretsecret\n-----END EC PRIVATE KEY-----"


class Kept(logging.Handler):
    """Keeps what the process would log, in both formats."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.json: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("httpx2"):  # the client of the test
            return
        self.lines.append(Lines(timed=False).format(record))
        said = JsonLines().format(record)
        self.lines.append(said)
        self.json.append(json.loads(said))
        assert "\n" not in said


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


@pytest.fixture
def cloud(database: Database) -> Cloud:
    statements.watch(database.engine, statements.slow_log(0))
    return Cloud(database, create_app(database))


def test_a_request_is_one_object_with_who_and_what(cloud: Cloud, kept: Kept) -> None:
    cloud.operator("GET", "/v1/tenants/nobody?x=1", headers={"X-Request-Id": "r-1"})
    said = [line for line in kept.json if line["logger"] == "vgpumgr_api.access"][-1]
    assert {name: said[name] for name in ("level", "request_id", "route", "method", "status", "code", "path")} == {
        "level": "info",
        "request_id": "r-1",
        "route": "/v1/tenants/{name}",
        "method": "GET",
        "status": 422,
        "code": "field.invalid",
        "path": "/v1/tenants/nobody",
    }
    assert said["actor"].startswith("operator:")
    assert said["time"].endswith("+00:00")
    assert said["duration_ms"] >= 0
    # Other lines for this request, from another thread, also have its id.
    slow = [line for line in kept.json if line["logger"] == "vgpumgr_api.database"]
    assert {line["request_id"] for line in slow} == {"r-1"}
    assert any("SELECT tokens.id" in line["message"] for line in slow)


def test_no_secret_of_any_kind_on_any_path(cloud: Cloud, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each secret is sent wherever a client can put it, to every route; some of them end up in exceptions."""
    made = cloud.operator.post("/v1/hosts", {"name": "h1"})["enroll_token"]
    host = cloud.nobody.http.post(
        "/v1/enroll",
        json={"agent_version": "1", "boot_id": str(uuid4())},
        headers={"Authorization": f"Bearer {made}"},
    ).json()["token"]
    tokens = [cloud.operator.token, cloud.admin.token, cloud.token(role="viewer").token, made, host, new_secret(), JWT]
    secrets = [token for token in tokens if token] + [KEY]
    for route in cloud.http.app.routes:  # type: ignore[attr-defined]
        for method in route.methods:
            for secret in secrets:
                path = route.path_format
                for part in route.param_convertors:
                    path = path.replace(f"{{{part}}}", quote(secret))
                cloud.http.request(
                    method,
                    path,
                    params={"page_token": secret},
                    json={"name": secret, "csr": secret, secret: secret},
                    headers={
                        "Authorization": f"Bearer {secret}" if secret != KEY else "Bearer x",
                        "Idempotency-Key": quote(secret),
                        "If-Match": quote(secret),
                        "X-Request-Id": secret if secret != KEY else "x",
                    },
                )
    broken = "vgpumgr_api.tenancy.tenants.create_tenant"

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"{secrets} postgresql://vgpumgr:hunter22@db/x")

    monkeypatch.setattr(f"{broken.rpartition('.')[0]}.refuse_duplicate", fail)
    assert cloud.operator("POST", "/v1/tenants", {"name": "acme"}).status_code == 500
    assert any("exception" in line for line in kept.json)
    assert len(kept.lines) > 500
    wholly = "\n".join(kept.lines)
    for secret in (*secrets, *(quote(each) for each in secrets), "hunter22", "MHcCAQEEIB"):
        assert secret not in wholly, secret


def test_parameters_of_statements_are_not_told(cloud: Cloud, kept: Kept) -> None:
    with pytest.raises(Exception, match="no_such_table") as error:
        cloud.database.run(lambda session: session.execute(text("SELECT :x FROM no_such_table"), {"x": "confidential"}))
    assert "confidential" not in str(error.value)
    assert "confidential" not in "\n".join(kept.lines)


@pytest.mark.parametrize(
    ("text_", "left"),
    [
        (f"token {new_secret()}.", f"token {HIDDEN}."),
        (f"Authorization: Bearer {'x' * 20}", f"Authorization: {HIDDEN}"),
        (JWT, HIDDEN),
        (KEY, HIDDEN),
        (KEY[:50], HIDDEN),
        ("postgresql://me:pass@db/x", f"postgresql://{HIDDEN}@db/x"),
        ("host=db password=pass user=me", f"host=db {HIDDEN} user=me"),
        (quote(new_secret()).replace("_", "%5F"), HIDDEN),
        ("slice 0b8b6a2e-77a1-4a2e-9d27-0a4b3c2d1e0f of acme at https://api/x", None),
    ],
)
def test_what_looks_like_a_secret_is_hidden_and_the_rest_is_not(text_: str, left: str | None) -> None:
    assert hide(text_) == (text_ if left is None else left)


def test_only_statements_above_the_threshold_are_logged(database: Database, kept: Kept) -> None:
    statements.watch(database.engine, statements.slow_log(3_600_000))
    database.run(lambda session: session.execute(text("SELECT 1")))
    assert kept.json == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("log_format = 'xml'", "log_format"),
        ("slow_statement_ms = -1", "slow_statement_ms"),
        ("stop_delay_s = 301", "s"),
    ],
)
def test_settings_out_of_range_are_named(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "api.toml"
    path.write_text(line)
    with pytest.raises(ConfigError, match=named):
        load(path)


def test_lines_have_the_time_unless_the_journal_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = logging.LogRecord("vgpumgr_api.server", logging.INFO, __file__, 1, "said", None, None)
    record.created = 0.25
    assert Lines(timed=True).format(record) == "1970-01-01T00:00:00.250+00:00 INFO vgpumgr_api.server: said"
    assert Lines(timed=False).format(record) == "INFO vgpumgr_api.server: said"
    with (tmp_path / "log").open("w") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
        assert not read_by_journal(stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino + 1}")
        assert not read_by_journal(stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert read_by_journal(stream)
    assert not read_by_journal(io.StringIO())
