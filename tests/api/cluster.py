# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL: initdb in a temporary directory, a unix socket in it, no TCP."""

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
"""Twice what the servers of `make test` take."""

UNTIL_CLOSED = """
directory=$1; shift
"$@" & read -r _ || ended=yes
kill -QUIT $!; wait
[ -z "$ended" ] || rm -rf "$directory"
"""
"""Ends the server the hard way when it is sent a line. A test that is killed sends none; then its files go as well."""


@dataclass(kw_only=True)
class Cluster:
    """A running server. The directory can be entered by its owner and by root only, so no password is needed.

    It ends with the process that started it, even one that is killed. `durable`: it waits for the disk, as servers in
    use do; tests want speed instead. `settings`: of postgresql.conf.
    """

    directory: Path
    binaries: Path
    durable: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    _server: subprocess.Popen[bytes] | None = None

    @staticmethod
    @contextlib.contextmanager
    def started(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> "Iterator[Cluster]":
        """Starts a server and stops it at the end."""
        binaries = find_binaries()
        # Short: the path of a socket has room for 107 bytes.
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
        """How to reach one of its databases."""
        return f"postgresql://{SERVER_USER}@/{name}?host={self.directory}"

    def create(self, name: str, *, template: str = "template0") -> str:
        """Makes a database and returns its URL."""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self.url(name)

    def drop(self, name: str) -> None:
        """Removes a database and whoever is still connected to it."""
        self.sql(f'DROP DATABASE "{name}" WITH (FORCE)')

    def restart(self) -> None:
        """Ends all connections the hard way and starts again."""
        self._stop()
        self._start()

    def sql(self, statement: str) -> None:
        """Runs a statement outside of any transaction."""
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
                start_new_session=True,  # a test may be killed with its group
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
    """What a command is put behind that shall end with its standard input, with files in `directory`."""
    return ["sh", "-c", UNTIL_CLOSED, "sh", str(directory)]


def place(*, durable: bool, memory: Path = MEMORY) -> Path | None:
    """Where a server's files are to be: in memory, if it has room and nobody waits for a disk; None: wherever.

    To copy a database on a disk costs several times as much processor time.
    """
    if durable or not memory.is_dir():
        return None
    room = os.statvfs(memory)
    return memory if room.f_bavail * room.f_frsize >= ROOM_BYTES else None


def find_binaries() -> Path:
    """Where Debian's newest PostgreSQL has its server programs, or where PATH has them."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]), reverse=True
    )
    if found:
        return found[0].parent
    if on_path := shutil.which("initdb"):
        return Path(on_path).parent
    raise RuntimeError("PostgreSQL is not installed; install the packages of tests/packages.txt")
