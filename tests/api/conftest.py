# SPDX-License-Identifier: Apache-2.0
"""Databases for tests: each test gets an empty one of its own, once on SQLite and once on a real PostgreSQL."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.services import installation

from tests.api.cluster import Cluster
from tests.api.world import World


class Clock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """A cluster of this session's own, on a unix socket."""
    with Cluster.started() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgresql_template(postgresql: Cluster) -> str:
    """The name of a database that is fresh from ``vgpumgr-api init``, but for the token."""
    _make(postgresql.create("template_fresh"))
    return "template_fresh"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a file."""
    path = tmp_path_factory.mktemp("template") / "fresh.db"
    _make(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """Which engine a test runs on; every test that uses a database runs on both."""
    return str(request.param)


_NUMBERS = count(1)


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if engine_name == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    name = f"empty_{next(_NUMBERS)}"
    yield cluster.create(name)
    cluster.drop(name)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with tables and an epoch, and nothing else."""
    if engine_name == "sqlite":
        path = tmp_path / "vgpumgr.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    name = f"test_{next(_NUMBERS)}"
    yield cluster.create(name, template=request.getfixturevalue("postgresql_template"))
    cluster.drop(name)


@pytest.fixture
def clock() -> Clock:
    """What time `database` thinks it is."""
    return Clock()


@pytest.fixture
def database(database_url: str, clock: Clock) -> Iterator[Database]:
    """An empty database."""
    opened = Database(database_url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def world(database: Database) -> World:
    """Short ways to make and change things through the services."""
    return World(database)


def _make(url: str) -> None:
    made = Database(url)
    schema.upgrade(made)
    made.run(installation.ensure)
    made.close()
