# SPDX-License-Identifier: Apache-2.0
"""A private PostgreSQL: initdb in a temporary directory, a unix socket in it, no TCP."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SERVER_USER = "postgres"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running server. The directory can be entered by its owner and by root only, so no password is needed."""

    directory: Path
    binaries: Path

    @staticmethod
    @contextlib.contextmanager
    def started() -> "Iterator[Cluster]":
        """Starts a server and stops it at the end."""
        binaries = find_binaries()
        # Short: the path of a socket has room for 107 bytes.
        directory = Path(tempfile.mkdtemp(prefix="vgpumgr-pg-"))
        if os.geteuid() == 0:
            shutil.chown(directory, SERVER_USER, SERVER_USER)
        cluster = Cluster(directory=directory, binaries=binaries)
        try:
            cluster._run("initdb", "--auth=trust", f"--username={SERVER_USER}", "--encoding=UTF8", "--no-sync")
            # Durability across a power cut is not what tests ask; speed is.
            settings = f"-c listen_addresses='' -c unix_socket_directories={directory} -c max_connections=200 -F"
            log = directory / "log"
            cluster._run("pg_ctl", "start", "--wait", f"--log={log}", f"--options={settings}")
            try:
                yield cluster
            finally:
                cluster._run("pg_ctl", "stop", "--mode=immediate")
        finally:
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
        self._run("pg_ctl", "restart", "--wait", "--mode=immediate", f"--log={self.directory / 'log'}")

    def sql(self, statement: str) -> None:
        """Runs a statement outside of any transaction."""
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        # Not a pipe: the server that pg_ctl leaves behind would keep it open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self.binaries / program, f"--pgdata={self.directory / 'data'}", *arguments],
                user=SERVER_USER if os.geteuid() == 0 else None,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=60,
            )
            if done.returncode != 0:
                output.seek(0)
                raise RuntimeError(f"{program}: {output.read().decode(errors='replace')}")


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
