# SPDX-License-Identifier: Apache-2.0
"""The API as a process: who may read its metrics, when it is ready, and how it shuts down."""

import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from sqlalchemy import text
from vgpumgr_api.db.database import Database

from tests.api.cluster import Cluster
from tests.api.http.process import Server, command, initialised, serving, settings_file
from tests.api.http.test_serve import client
from vgpumgr.wire.problem import Problem

SECRET = "prometheus-0123456789"


def eventually(there: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := there():
            return found
        time.sleep(0.05)
    raise AssertionError("did not happen")


def metrics_url(server: Server) -> str:
    found = eventually(lambda: re.search(r"metrics on (http://[0-9.:]+)", server.log.read_text()))
    return f"{found[1]}/metrics"


def test_metrics_have_a_listener_and_a_token_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    settings = {"metrics_host": "127.0.0.1", "metrics_port": 0, "metrics_token_file": "secret", "log_format": "json"}
    with serving(tmp_path, **settings) as server, client(server) as http:
        url = metrics_url(server)
        assert http.get("/v1/tenants").status_code == 200
        assert http.get("/metrics").status_code == 404
        with httpx2.Client(trust_env=False) as scraper:
            assert scraper.get(url).status_code == 401
            assert scraper.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401
            answer = scraper.get(url, headers={"Authorization": f"Bearer {SECRET}"})
            assert answer.headers["content-type"].startswith("text/plain")
            assert 'vgpumgr_requests_total{method="GET",route="/v1/tenants",status="200"} 1.0' in answer.text
            assert scraper.post(url).status_code == 405
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*(set(line) for line in lines))
    assert SECRET not in str(lines)
    assert server.token not in str(lines)


def test_metrics_count_the_connections_that_the_server_has(tmp_path: Path) -> None:
    settings = {"metrics_host": "127.0.0.1", "metrics_port": 0}
    with serving(tmp_path, **settings) as server, httpx2.Client(trust_env=False) as scraper, client(server) as http:
        assert http.get("/v1/health").status_code == 200
        text = scraper.get(metrics_url(server)).text
    said = dict(re.findall(r"^(vgpumgr_connections\w*) ([0-9.]+)$", text, re.M))
    assert float(said["vgpumgr_connections"]) >= 1
    assert float(said["vgpumgr_connections_max"]) >= 16


def test_metrics_beyond_loopback_need_tls_and_a_token(tmp_path: Path) -> None:
    settings = settings_file(tmp_path, metrics_host="0.0.0.0", metrics_port=0)
    initialised(settings)
    ended = command("serve", settings=settings)
    assert (ended.returncode, "metrics_host '0.0.0.0' is reachable" in ended.stderr) == (1, True)
    settings = settings_file(tmp_path, metrics_host="127.0.0.1", metrics_port=0, metrics_token_file="none")
    ended = command("serve", settings=settings)
    assert (ended.returncode, "metrics_token_file" in ended.stderr) == (1, True)


def test_before_its_end_it_is_not_ready_and_still_answers(tmp_path: Path) -> None:
    with serving(tmp_path, stop_delay_s=300) as server, client(server) as http:
        assert http.get("/v1/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        answer = eventually(lambda: (found := http.get("/v1/health")).status_code == 503 and found)
        assert Problem.model_validate_json(answer.content).code == "api.stopping"
        assert answer.headers["connection"] == "close"
        assert http.get("/v1/health/live").status_code == 200
        assert http.get("/v1/tenants").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == -signal.SIGTERM


def test_a_request_under_way_is_answered_before_the_end(
    postgresql: Cluster, postgresql_template: str, tmp_path: Path
) -> None:
    url = postgresql.create("stopping")
    with serving(tmp_path, database=url) as server, client(server) as http, ThreadPoolExecutor() as elsewhere:
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE tenants IN EXCLUSIVE MODE")
            waiting = elsewhere.submit(http.post, "/v1/tenants", json={"name": "acme"})
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = 'stopping'"
            with psycopg.connect(url, autocommit=True) as watcher:
                eventually(lambda: watcher.execute(waits).fetchone())
            server.process.send_signal(signal.SIGTERM)
            eventually(lambda: "stopping" in server.log.read_text())
            assert server.process.poll() is None
        assert waiting.result(timeout=60).status_code == 201
        assert server.process.wait(timeout=60) == 0
    postgresql.drop("stopping")


@pytest.mark.long
def test_what_hangs_for_ever_does_not_keep_it(postgresql: Cluster, postgresql_template: str, tmp_path: Path) -> None:
    """The database's machine seems to vanish: a stopped server process does not answer."""
    import os

    url = postgresql.create("hanging")
    with serving(tmp_path, database=url) as server, client(server) as http, ThreadPoolExecutor() as elsewhere:
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE tenants IN EXCLUSIVE MODE")
            waiting = elsewhere.submit(http.post, "/v1/tenants", json={"name": "acme"})
            waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = 'hanging'"
            with psycopg.connect(url, autocommit=True) as watcher:
                pid = eventually(lambda: watcher.execute(waits).fetchone())[0]
            os.kill(pid, signal.SIGSTOP)
            try:
                server.process.send_signal(signal.SIGTERM)
                assert server.process.wait(timeout=120) == 1
                assert "abandoned" in server.log.read_text()
            finally:
                os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(httpx2.TransportError):  # otherwise the answer was an error
            assert waiting.result(timeout=60).status_code == 500
    postgresql.drop("hanging")


def test_readiness_needs_a_database_that_is_there_and_up_to_date_and_liveness_does_not(
    postgresql: Cluster, postgresql_template: str, tmp_path: Path
) -> None:
    url = postgresql.create("ready")
    with serving(tmp_path, database=url) as server, client(server) as http:

        def code() -> str:
            answer = http.get("/v1/health")
            return "" if answer.status_code == 200 else Problem.model_validate_json(answer.content).code

        assert code() == ""
        database = Database(url)
        with database.engine.begin() as connection:
            step = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
        eventually(lambda: code() == "database.outdated")
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :step"), {"step": step})
        database.close()
        eventually(lambda: code() == "")
        postgresql.drop("ready")
        eventually(lambda: code() == "database.busy")
        assert http.get("/v1/health/live").status_code == 200


def test_a_second_client_is_not_kept_by_the_first(tmp_path: Path) -> None:
    """A scraper that sends nothing delays neither other scrapers nor the shutdown."""
    with serving(tmp_path, metrics_host="127.0.0.1", metrics_port=0) as server:
        url = metrics_url(server)
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)), httpx2.Client(trust_env=False) as scraper:
            assert scraper.get(url).status_code == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 0
