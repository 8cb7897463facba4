# SPDX-License-Identifier: Apache-2.0
"""The API as a process: over loopback, TLS and a Unix socket, under systemd's control, and asked to stop."""

import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.api.http.process import Server, command, initialised, serving, settings_file
from vgpumgr.wire.fleet import Enrolled
from vgpumgr.wire.problem import Problem

ENROL = {"agent_version": "1", "boot_id": "00000000-0000-4000-8000-000000000001"}


def client(server: Server, *, timeout_s: float = 60) -> httpx2.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx2.Client(base_url=server.url, headers=headers, timeout=timeout_s, trust_env=False)


def enrolled(http: httpx2.Client) -> Enrolled:
    announced = http.post("/v1/hosts", json={"name": "h1"}).json()
    bearer = {"Authorization": f"Bearer {announced['enroll_token']}"}
    return Enrolled.model_validate(http.post("/v1/enroll", json=ENROL, headers=bearer).json())


def test_over_loopback_from_the_first_token_to_sigterm(tmp_path: Path) -> None:
    with serving(tmp_path, environment={}) as server, client(server) as http:
        assert server.url.startswith("http://127.0.0.1:")
        assert http.get("/v1/health").json() == {"status": "ok"}
        assert http.post("/v1/tenants", json={"name": "red"}).status_code == 201
        assert http.get("/v1/tenants/red").headers["etag"].startswith('"1-')
        assert "server" not in http.get("/").headers
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        log = server.log.read_text()
    assert "POST /v1/tenants 201" in log
    assert "caller=operator:" in log
    assert server.token not in log
    assert "Traceback" not in log


def test_over_tls_with_a_certificate_that_the_client_trusts(tmp_path: Path) -> None:
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "crt.pem"]
    subprocess.run([*make.split(), *files], check=True, capture_output=True)
    # The paths are relative to the settings file. The address is not loopback, which TLS permits.
    tls = {"tls_certificate": "crt.pem", "tls_key": "key.pem", "listen_host": "0.0.0.0"}
    with serving(tmp_path, **tls) as server:
        port = server.url.rpartition(":")[2]
        assert server.url == f"https://0.0.0.0:{port}"
        trusting = ssl.create_default_context(cafile=tmp_path / "crt.pem")
        with httpx2.Client(verify=trusting, trust_env=False) as http:
            answer = http.get(
                f"https://127.0.0.1:{port}/v1/tenants", headers={"Authorization": f"Bearer {server.token}"}
            )
            assert answer.json()["items"] == []
        with httpx2.Client(trust_env=False) as http, pytest.raises(httpx2.ConnectError):
            http.get(f"https://127.0.0.1:{port}/")
        with httpx2.Client(trust_env=False) as http, pytest.raises(httpx2.TransportError):
            http.get(f"http://127.0.0.1:{port}/")


def test_refuses_to_start_beyond_loopback_without_tls(tmp_path: Path) -> None:
    settings = settings_file(tmp_path, listen_host="0.0.0.0")
    initialised(settings)
    ended = command("serve", settings=settings)
    assert ended.returncode == 1
    assert ended.stderr.startswith("vgpumgr-api: listen_host '0.0.0.0' is reachable from other machines")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", [None, "not PEM"])
def test_says_which_certificate_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "crt.pem").write_text(content)
    settings = settings_file(tmp_path, tls_certificate="crt.pem", tls_key="crt.pem")
    initialised(settings)
    ended = command("serve", settings=settings)
    assert ended.returncode == 1
    assert f"tls_certificate {tmp_path}/crt.pem" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with serving(tmp_path, listen_host=f"unix:{path}") as server:
        assert server.url == f"unix:{path}"
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://api") as http:
            assert http.get("/v1/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
    assert not path.exists()


def test_what_is_not_http_gets_a_problem_too(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert Problem.model_validate_json(body).code == "body.invalid"


def test_systemd_hears_that_it_is_ready_alive_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        with serving(tmp_path, environment=environment) as server:
            assert b"READY=1" in systemd.recv(4096)
            assert systemd.recv(4096) == b"WATCHDOG=1"
            assert systemd.recv(4096) == b"WATCHDOG=1"
            server.process.send_signal(signal.SIGTERM)
            while (said := systemd.recv(4096)) == b"WATCHDOG=1":
                pass
            assert said == b"STOPPING=1"
            assert server.process.wait(timeout=30) == 0


def test_a_waiting_agent_hears_of_a_change_and_is_let_go_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server, client(server) as http, ThreadPoolExecutor() as elsewhere:
        host = enrolled(http)
        agent = client(server, timeout_s=90)
        agent.headers["Authorization"] = f"Bearer {host.token}"

        def desired(wait_s: int, **seen: object) -> httpx2.Response:
            return agent.get(f"/v1/hosts/{host.host_id}/desired", params=seen | {"wait_s": wait_s} if seen else None)

        now = desired(0).json()
        seen = {"epoch": now["epoch"], "generation": now["generation"]}
        assert desired(1, **seen).status_code == 204
        assert desired(60, **seen | {"generation": 0}).json() == now

        waiting = elsewhere.submit(desired, 60, **seen)
        time.sleep(1)
        assert not waiting.done()
        # Another process changes the database, like another replica of the API would.
        assert command("new-epoch", settings=tmp_path / "api.toml").returncode == 0
        changed = waiting.result(timeout=30).json()
        assert changed["epoch"] != now["epoch"]
        assert changed["epoch_confirmed"] is False

        waiting = elsewhere.submit(desired, 60, epoch=changed["epoch"], generation=changed["generation"])
        time.sleep(3)
        server.process.send_signal(signal.SIGTERM)
        assert waiting.result(timeout=30).status_code == 204
        assert server.process.wait(timeout=30) == 0
