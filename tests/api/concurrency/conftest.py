# SPDX-License-Identifier: Apache-2.0
"""`deployment`: for tests that need no restart; all tests of a file share one on each kind of database."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.cluster import Cluster
from tests.api.concurrency.deployment import Deployment, deployed
from tests.api.concurrency.races import Fleet


@pytest.fixture
def seed() -> int:
    """The seed for every random choice except thread scheduling. It is printed, and VGPUMGR_SEED sets it again."""
    chosen = int(os.environ.get("VGPUMGR_SEED") or int.from_bytes(os.urandom(4)))
    print(f"VGPUMGR_SEED={chosen}")
    return chosen


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def deployment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One process on SQLite, or two replicas on PostgreSQL."""
    directory: Path = tmp_path_factory.mktemp("races")
    if request.param == "sqlite":
        path = directory / "vgpumgr.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        with deployed(directory, f"sqlite:///{path}", replicas=1) as running:
            yield running
        return
    cluster: Cluster = request.getfixturevalue("postgresql")
    url = cluster.create("races", template=request.getfixturevalue("postgresql_template"))
    with deployed(directory, url, replicas=2) as running:
        yield running
    cluster.drop("races")


@pytest.fixture
def fleet(deployment: Deployment) -> Iterator[Fleet]:
    """After each race the database is consistent and no replica has logged an internal error."""
    made = Fleet(deployment)
    yield made
    assert made.audit.violations(quotas_may_be_cut=True) == []
    assert deployment.server_errors() == []


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """A fresh file."""
    path = tmp_path / "vgpumgr.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgresql_url(postgresql: Cluster, postgresql_template: str) -> Iterator[str]:
    """A fresh database."""
    yield postgresql.create("storm", template=postgresql_template)
    postgresql.drop("storm")
