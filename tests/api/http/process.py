# SPDX-License-Identifier: Apache-2.0
"""A real ``vgpumgr-api serve``, started like systemd does it."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpumgr_api import admin, config

from tests.api.forked import Forked

COMMAND = (sys.executable, "-m", "vgpumgr_api.main")
START_S = 60


@dataclass(frozen=True)
class Server:
    """`url`: the URL from the process's log. `token`: the token of an operator."""

    process: subprocess.Popen[bytes] | Forked
    url: str
    token: str
    log: Path


def settings_file(directory: Path, **settings: str | int) -> Path:
    """Writes an api.toml with an SQLite database beside it and a port that the kernel chooses."""
    chosen: dict[str, str | int] = {"database": f"sqlite:///{directory}/vgpumgr.db", "listen_port": 0} | settings
    lines = [f"{name} = {value if isinstance(value, int) else repr(value)}" for name, value in chosen.items()]
    path = directory / "api.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def command(*arguments: str, settings: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``vgpumgr-api`` and returns its output."""
    with tempfile.TemporaryDirectory() as directory:
        output, errors = Path(directory, "output"), Path(directory, "errors")
        process = Forked([*arguments, "--config", settings], output=output, errors=errors)
        try:
            status = process.wait(timeout=120)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, status, output.read_text(), errors.read_text())


def initialised(settings: Path) -> str:
    """Does the work of ``vgpumgr-api init`` without its start-up second; returns the token."""
    return admin.initialise(config.load(settings)).secret


@contextlib.contextmanager
def serving(
    directory: Path, *, environment: Mapping[str, str] | None = None, **settings: str | int
) -> Iterator[Server]:
    """Keeps the process running until the block ends, or until the block ends it.

    With an `environment`, which may be empty and is added to that of the tests, the process starts like from a shell.
    """
    path = settings_file(directory, **settings)
    token = initialised(path)
    log = directory / "api.log"
    process = started(path, log) if environment is None else _started_from_a_shell(path, log, environment)
    try:
        yield Server(process, listening(process, log), token, log)
    finally:
        process.kill()
        process.wait()


def started(settings: Path, log: Path) -> Forked:
    """A server that starts its log again."""
    log.write_bytes(b"")
    return Forked(["serve", "--config", settings], errors=log)


def _started_from_a_shell(settings: Path, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [*COMMAND, "serve", "--config", settings], stderr=output, env=dict(os.environ) | dict(environment)
        )


def listening(process: subprocess.Popen[bytes] | Forked, log: Path) -> str:
    """Waits until a process logs where it listens; returns that."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if found := re.search(r'listening on ([^\s"]+)["}]*$', log.read_text(), re.M):
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"not listening after {START_S} s: {log.read_text()}")
