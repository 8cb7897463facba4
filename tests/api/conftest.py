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
    """Leaves SQLite to `make test-long` where a file says so."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if item.get_closest_marker("sqlite_long") and parameters.get("engine_name") == "sqlite":
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """To look for garbage among all modules and tests again and again takes a tenth of the time."""
    collect_seldom()


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
def templates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Databases that are made once."""
    return Templates(lambda: request.getfixturevalue("postgresql"), tmp_path_factory.mktemp("templates"))


@pytest.fixture(scope="session")
def postgresql_template(templates: Templates) -> str:
    """The name of a database that is fresh from ``vgpumgr-api init``, but for the token."""
    return templates.database("fresh", _make)


@pytest.fixture(scope="session")
def sqlite_template(templates: Templates) -> Path:
    """The same as a file."""
    return templates.file("fresh", _make)


@pytest.fixture(params=["sqlite", "postgresql"])
def engine_name(request: pytest.FixtureRequest) -> str:
    """Which engine a test runs on; every test that uses a database runs on both, if not all in `make test`."""
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
    """What time `database` thinks it is."""
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
    """An empty database, lent; if the test asks for `database_url` as well, it is that one and the test's own."""
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
    """The URL of `database`, for who looks at it past the services."""
    return database.engine.url.set(drivername=database.engine.dialect.name).render_as_string(hide_password=False)


@pytest.fixture
def world(database: Database) -> World:
    """Short ways to make and change things through the services."""
    return World(database)


def _make(made: Database) -> None:
    schema.upgrade(made)
    made.run(installation.ensure)
