# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL: initdb in a temporary directory with a Unix socket, and no TCP."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SERVER_USER = "postgres"

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30
"""Twice the memory that the servers of `make test` need."""

UNTIL_CLOSED = """
directory=$1; shift
"$@" & read -r _ || ended=yes
kill -QUIT $!; wait
[ -z "$ended" ] || rm -rf "$directory"
"""
"""Kills the server when it reads a line. A killed test sends no line; then the script also removes the server's
files.
"""


@dataclass(kw_only=True)
class Cluster:
    """A running server. Only its owner and root can enter the directory, so no password is needed.

    The server ends with the process that started it, even if that process is killed. `durable`: it waits for the disk,
    like servers in production; most tests want speed instead. `settings`: settings for postgresql.conf.
    """

    directory: Path
    binaries: Path
    durable: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    _server: subprocess.Popen[bytes] | None = None

    @staticmethod
    @contextlib.contextmanager
    def started(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> "Iterator[Cluster]":
        """Starts a server; stops it when the block ends."""
        binaries = find_binaries()
        # The name is short because the path of a socket has room for 107 bytes.
        directory = Path(tempfile.mkdtemp(prefix="vgpumgr-pg-", dir=place(durable=durable)))
        if os.geteuid() == 0:
            shutil.chown(directory, SERVER_USER, SERVER_USER)
        cluster = Cluster(directory=directory, binaries=binaries, durable=durable, settings=settings or {})
        try:
            cluster._initialise()
            cluster._start()
            yield cluster
        finally:
            cluster._stop()
            shutil.rmtree(directory, ignore_errors=True)

    def url(self, name: str) -> str:
        """Returns the URL of one of its databases."""
        return f"postgresql://{SERVER_USER}@/{name}?host={self.directory}"

    def create(self, name: str, *, template: str = "template0") -> str:
        """Creates a database and returns its URL."""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop(self, name: str) -> None:
        """Drops a database and terminates all connections to it."""
        self.sql(f'DROP DATABASE "{name}" WITH (FORCE)')

    def restart(self) -> None:
        """Terminates all connections and restarts the server."""
        self._stop()
        self._start()

    def sql(self, statement: str) -> None:
        """Runs a statement outside any transaction."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _initialise(self) -> None:
        done = subprocess.run(
            [
                self.binaries / "initdb",
                f"--pgdata={self.directory / 'data'}",
                "--auth=trust",
                "--encoding=UTF8",
                f"--username={SERVER_USER}",
                "--no-sync",
            ],
            user=self._user(),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")

    def _start(self) -> None:
        import psycopg

        chosen = {"listen_addresses": "", "max_connections": "200", "max_wal_size": "256MB", **self.settings}
        options = [f"--{name}={value}" for name, value in chosen.items()]
        options += ["-k", str(self.directory), *([] if self.durable else ["-F"])]
        log = self.directory / "log"
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                [*until_closed(self.directory), self.binaries / "postgres", "-D", self.directory / "data", *options],
                user=self._user(),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a test may be killed together with its process group
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.sql("SELECT 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"postgres: {log.read_text(errors='replace')}") from None
            time.sleep(0.05)

    def _stop(self) -> None:
        if self._server is not None:
            self._server.communicate(b"\n", timeout=30)
            self._server = None

    @staticmethod
    def _user() -> str | None:
        return SERVER_USER if os.geteuid() == 0 else None


def until_closed(directory: Path) -> list[str]:
    """Returns a command prefix: the command ends when standard input closes, and then `directory` is removed."""
    return ["sh", "-c", UNTIL_CLOSED, "sh", str(directory)]


def place(*, durable: bool, memory: Path = MEMORY) -> Path | None:
    """Returns the parent directory for a server's files: in memory, if there is room and `durable` is not set; else
    None, the default.

    Copying a database on a disk costs several times as much processor time.
    """
    if durable or not memory.is_dir():
        return None
    room = os.statvfs(memory)
    return memory if room.f_bavail * room.f_frsize >= ROOM_BYTES else None


def find_binaries() -> Path:
    """Returns the directory of Debian's newest PostgreSQL server programs, or the one in PATH."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]), reverse=True
    )
    if found:
        return found[0].parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).parent
    raise RuntimeError("PostgreSQL is not installed; install the packages of tests/packages.txt")
