# SPDX-License-Identifier: Apache-2.0
"""The command as a process: closed pipes, full disks, signals, and its imports at the start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import pytest

from tests.unit.cli.fake_api import TOKEN, FakeApi

COMMAND = [sys.executable, "-c", "from vgpumgr.cli.main import run; run()"]
LIMIT_S = 60


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The fake API behind a real socket."""
    api = FakeApi()
    # One page that exceeds the capacity of a pipe, because this is about output, not about pages.
    items = ",".join([tenant.model_dump_json() for tenant in api.lists["tenants"]] * 5000)
    many = httpx2.Response(200, content=f'{{"items": [{items}]}}')

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request = httpx2.Request("GET", f"http://fake{self.path}", headers=dict(self.headers))
            response = many if self.path.startswith("/v1/tenants?") else api.handle(request)
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "VGPUMGR_URL": f"http://127.0.0.1:{server.server_port}",
        "VGPUMGR_TOKEN": TOKEN,
    }
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("output", ["table", "json", "name"])
def test_a_reader_that_goes_away_ends_it_quietly(env: dict[str, str], output: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "get", "tenants", "-o", output], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT_S) == 141


def test_a_reader_that_was_never_there_ends_it_quietly(env: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run([*COMMAND, "get", "tenant", "blue"], env=env, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("output", ["table", "json", "name"])
def test_a_full_disk_is_said(env: dict[str, str], output: str) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "get", "tenants", "-o", output], env=env, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


def test_a_closed_standard_error_changes_no_status(env: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, "get", "tenant", "nobody"], env=env, stderr=full, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (3, b"")


def test_closed_streams_are_no_defects(env: dict[str, str]) -> None:
    script = 'exec "$0" "$@" get tenant blue'
    closed_out = subprocess.run(["sh", "-c", script + " >&-", *COMMAND], env=env, stderr=subprocess.PIPE, text=True)
    assert closed_out.returncode == 1
    assert closed_out.stderr.startswith("vgpumgr: output.failed: standard output: closed; ")
    closed_err = subprocess.run(
        ["sh", "-c", 'exec "$0" "$@" get tenant nobody 2>&-', *COMMAND], env=env, stdout=subprocess.PIPE
    )
    assert (closed_err.returncode, closed_err.stdout) == (3, b"")


def test_a_terminal_without_unicode_is_no_failure(env: dict[str, str]) -> None:
    ended = subprocess.run(
        [*COMMAND, "get", "tenant", "\u00e4"],
        env=env | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"vgpumgr: argument.invalid: tenant '")
    assert ended.stderr.count(b"\n") == 1


@pytest.fixture
def heeded_interrupt() -> Iterator[None]:
    """A test that runs in a shell's background ignores SIGINT, and its children would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupt")
def test_ctrl_c_while_it_waits_is_130(env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen([*COMMAND, "--url", url, "get", "tenants"], env=env, stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(100)
                process.send_signal(signal.SIGINT)
                assert process.stderr is not None
                assert process.stderr.read() == b""
                assert process.wait(LIMIT_S) == 130


def test_help_imports_neither_models_nor_http() -> None:
    script = (
        "import sys\n"
        "from vgpumgr.cli.main import main\n"
        "from vgpumgr.cli.session import Session\n"
        "assert main(['--help'], Session()) == 0\n"
        "heavy = {'pydantic', 'httpx2', 'rich', 'libvirt', 'asyncio', 'ssl', 'socket'} & set(sys.modules)\n"
        "print(heavy, file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"}
    )
    assert ended.stderr == "set()\n"
