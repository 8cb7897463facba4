# SPDX-License-Identifier: Apache-2.0
"""A real PgBouncer in front of a test's PostgreSQL, on a Unix socket in the same directory."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.api.cluster import SERVER_USER, Cluster

PORT = 6432
START_S = 30


@contextlib.contextmanager
def bouncing(cluster: Cluster, directory: Path, *, pool_mode: str, ignored: str = "") -> Iterator[str]:
    """Yields a URL with a placeholder for the database's name. `ignored`: startup parameters."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise RuntimeError("PgBouncer is not installed; install the packages of tests/packages.txt")
    place = cluster.directory / directory.name
    place.mkdir()
    (place / "users").write_text(f'"{SERVER_USER}" ""\n')
    settings = {
        "listen_addr": "",
        "listen_port": PORT,
        "unix_socket_dir": place,
        "auth_type": "trust",
        "auth_file": place / "users",
        "pool_mode": pool_mode,
        "ignore_startup_parameters": ignored,
    }
    lines = [f"[databases]\n* = host={cluster.directory}\n[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (place / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    user = None
    if os.geteuid() == 0:
        user = SERVER_USER
        shutil.chown(place, SERVER_USER, SERVER_USER)
    with subprocess.Popen([program, "-q", place / "pgbouncer.ini"], user=user, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(place)
            yield f"postgresql://{SERVER_USER}@/{{name}}?host={place}&port={PORT}"
        finally:
            process.kill()


def _wait(place: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(host=str(place), port=PORT, dbname="postgres", user=SERVER_USER).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)
