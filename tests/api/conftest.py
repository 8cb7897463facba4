# SPDX-License-Identifier: Apache-2.0
"""Databases for tests: each test gets an empty one, once on SQLite and once on a real PostgreSQL."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.transport.garbage import collect_seldom
from vgpumgr_api.installation import installation

from tests.api.cluster import Cluster
from tests.api.lent import Lender, PostgresqlLender, SqliteLender
from tests.api.templates import Templates
from tests.api.world import World


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs SQLite tests only in `make test-long` where a file says so."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.get_closest_marker("sqlite_long") and parameters.get("engine_name") == "sqlite":
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Repeated garbage collections over all modules and tests would take a tenth of the run time."""
    collect_seldom()


class Clock:
    """A clock that stands still until a test changes it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Cluster]:
    """The session's cluster, on a Unix socket."""
    with Cluster.started() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def templates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Templates: databases that are made once and then copied."""
    return Templates(lambda: request.getfixturevalue("postgresql"), tmp_path_factory.mktemp("templates"))


@pytest.fixture(scope="session")
def postgresql_template(templates: Templates) -> str:
    """The name of a database like ``vgpumgr-api init`` leaves it, but without the token."""
    return templates.database("fresh", _make)


@pytest.fixture(scope="session")
def sqlite_template(templates: Templates) -> Path:
    """The same as an SQLite file."""
    return templates.file("fresh", _make)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """The engine of a test. Every test with a database runs on both, but not always both in `make test`."""
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
def database_url(templates: Templates, engine_name: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a database with tables and an epoch, and nothing else."""
    with templates.copied(engine_name, "fresh", _make, tmp_path) as url:
        yield url


@pytest.fixture
def clock() -> Clock:
    """The clock of `database`."""
    return Clock()


@pytest.fixture(scope="session")
def sqlite_lender(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteLender]:
    lender = SqliteLender(sqlite_template, tmp_path_factory.mktemp("lent"))
    yield lender
    lender.close()


@pytest.fixture(scope="session")
def postgresql_lender(postgresql: Cluster, postgresql_template: str) -> Iterator[PostgresqlLender]:
    lender = PostgresqlLender(postgresql, postgresql_template)
    yield lender
    lender.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, engine_name: str, clock: Clock) -> Iterator[Database]:
    """An empty database on loan. If the test also asks for `database_url`, it is that database, which only this test
    uses.
    """
    if "database_url" in request.fixturenames:
        opened = Database(request.getfixturevalue("database_url"), clock=clock)
        yield opened
        opened.close()
        return
    lender: Lender = request.getfixturevalue(f"{engine_name}_lender")
    with lender.lend(clock) as lent:
        yield lent


@pytest.fixture
def url(database: Database) -> str:
    """The URL of `database`, for tests that read it without the services."""
    return database.engine.url.set(drivername=database.engine.dialect.name).render_as_string(hide_password=False)


@pytest.fixture
def world(database: Database) -> World:
    """Shortcuts that make and change objects through the services."""
    return World(database)


def _make(made: Database) -> None:
    schema.upgrade(made)
    made.run(installation.ensure)
