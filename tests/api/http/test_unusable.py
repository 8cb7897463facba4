# SPDX-License-Identifier: Apache-2.0
"""A database that is reachable but not usable: problem, health, log and metric give the reason."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, text
from sqlalchemy.orm import Session
from vgpumgr_api import admin
from vgpumgr_api.app import create_app
from vgpumgr_api.config import Config
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge import readiness
from vgpumgr_api.installation import health, liveness

from tests.api.cluster import Cluster
from tests.api.services.refusals import refused
from vgpumgr.wire.problem import Code

UNUSABLE = (503, "database.unusable")


class Service:
    """An API with its own SQLite file."""

    def __init__(self, database: Database, token: str, file: Path) -> None:
        self.database = database
        self.file = file
        self.app = create_app(database)
        self.http = TestClient(self.app, headers={"Authorization": f"Bearer {token}"})

    def make(self, name: str) -> tuple[int, str]:
        """Returns status and code of the answer to a new tenant."""
        answer = self.http.post("/v1/tenants", json={"name": name})
        return answer.status_code, str(answer.json().get("code", ""))

    def health(self) -> tuple[int, str]:
        answer = self.http.get("/v1/health")
        return answer.status_code, str(answer.json().get("code", ""))

    def troubles(self) -> list[str]:
        """Returns the troubles that the metric shows."""
        lines = self.app.state.metrics.text().decode().splitlines()
        return [line for line in lines if line.startswith("vgpumgr_database_trouble{") and line.endswith(" 1.0")]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(readiness, "FRESH_S", 0.0)
    file = tmp_path / "vgpumgr.db"
    url = f"sqlite:///{file}"
    token = admin.initialise(Config(database=url)).secret
    with contextlib.closing(Database(url, serving=True)) as database:
        made = Service(database, token, file)
        with made.http:
            yield made


def limit(service: Service, pragma: str) -> None:
    """Sets a limit that SQLite itself enforces on all connections of the service from now on."""

    @event.listens_for(service.database.engine, "checkout")
    def set_limit(connection: object, *_: object) -> None:
        connection.execute(pragma)  # type: ignore[attr-defined]


def fill(service: Service) -> None:
    """Makes the file unable to grow, like on a full disk: SQLite answers SQLITE_FULL."""
    limit(service, "PRAGMA max_page_count = 1")
    with service.database.engine.begin() as connection:
        connection.execute(text("SELECT 1"))


def refused_at_last(service: Service) -> str:
    """Makes tenants until one is refused; returns the reason."""
    for number in range(500):
        answer = service.http.post("/v1/tenants", json={"name": f"t{number}"})
        if answer.status_code != 201:
            assert (answer.status_code, answer.json()["code"]) == UNUSABLE
            return str(answer.json()["detail"])
    raise AssertionError("never refused")


def test_a_full_disk_is_told_everywhere_until_something_can_be_stored(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    fill(service)
    detail = refused_at_last(service)
    assert "disk of the database is full" in detail
    assert str(service.file) not in detail
    assert service.health() == UNUSABLE
    assert service.troubles() == ['vgpumgr_database_trouble{reason="full"} 1.0']
    told = [each.getMessage() for each in caplog.records if each.name == "vgpumgr_api.database"]
    assert f"{service.file}: database or disk is full" in told[0]
    # Neither a read nor a transaction that writes nothing proves that the disk has room.
    assert service.http.get("/v1/tenants").status_code == 200
    service.database.run(lambda session: session.execute(text("DELETE FROM tenants WHERE name = 'nobody'")))
    assert service.health() == UNUSABLE
    limit(service, "PRAGMA max_page_count = 1000000")
    assert service.make("kept") == (201, "")
    assert service.health() == (200, "")
    assert service.troubles() == []


def test_a_file_that_can_only_be_read_is_told(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    limit(service, "PRAGMA query_only = ON")
    assert service.make("acme") == UNUSABLE
    assert service.health() == UNUSABLE
    assert service.http.get("/v1/tenants").status_code == 200
    assert service.troubles() == ['vgpumgr_database_trouble{reason="read_only"} 1.0']
    assert len([each for each in caplog.records if each.name == "vgpumgr_api.database"]) == 1
    limit(service, "PRAGMA query_only = OFF")
    service.database.run(liveness.beat)
    assert service.health() == (200, "")


@pytest.mark.parametrize("beside", ["", "-wal", "-shm"])
def test_a_removed_file_takes_nothing_any_more_until_it_is_back(
    service: Service, beside: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert service.make("before") == (201, "")
    file = Path(f"{service.file}{beside}")
    aside = file.with_name("aside")
    file.rename(aside)
    assert service.make("lost") == UNUSABLE
    assert service.health() == UNUSABLE
    assert service.troubles() == ['vgpumgr_database_trouble{reason="file_gone"} 1.0']
    assert not file.exists()
    told = [each.getMessage() for each in caplog.records if each.name == "vgpumgr_api.database"]
    assert len(told) == 1
    assert f"{file} was removed" in told[0]
    aside.rename(file)
    assert service.health() == (200, "")
    assert service.make("after") == (201, "")
    names = [each["name"] for each in service.http.get("/v1/tenants").json()["items"]]
    assert names == ["after", "before"]


def test_a_file_that_was_put_in_its_place_is_not_written_to(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    assert service.make("before") == (201, "")
    other = service.file.with_name("other.db")
    admin.initialise(Config(database=f"sqlite:///{other}"))
    held = other.read_bytes()
    other.replace(service.file)
    assert service.make("lost") == UNUSABLE
    assert service.http.get("/v1/tenants").status_code == 503
    assert service.health() == UNUSABLE
    assert service.file.read_bytes() == held
    assert "was replaced" in caplog.text


def test_a_file_that_is_removed_during_a_transaction_is_not_answered_as_done(service: Service) -> None:
    attempts: list[int] = []

    def work(session: Session) -> None:
        liveness.beat(session)
        session.flush()
        attempts.append(1)
        service.file.unlink()

    with refused(Code.DATABASE_UNUSABLE):
        service.database.run(work)
    assert attempts == [1]


def test_a_link_that_leads_elsewhere_is_noticed(tmp_path: Path) -> None:
    for name in ("one.db", "two.db"):
        admin.initialise(Config(database=f"sqlite:///{tmp_path / name}"))
    link = tmp_path / "link.db"
    link.symlink_to("one.db")
    with contextlib.closing(Database(f"sqlite:///{link}")) as database:
        database.run(health.check, read_only=True)
        os.symlink("two.db", tmp_path / "next.db")  # noqa: PTH211  # as an operator would
        (tmp_path / "next.db").replace(link)
        with refused(Code.DATABASE_UNUSABLE):
            database.run(health.check, read_only=True)


def test_a_pool_that_was_emptied_opens_the_file_anew(service: Service) -> None:
    """When the last connection closes, SQLite removes the files beside the database."""
    assert service.make("before") == (201, "")
    service.database.engine.dispose()
    assert not Path(f"{service.file}-wal").exists()
    assert service.make("after") == (201, "")


def test_a_standby_of_postgresql_is_told_and_so_is_the_end_of_it(
    postgresql: Cluster, postgresql_template: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vgpumgr_api.database")
    postgresql.create("standby", template=postgresql_template)
    with contextlib.closing(Database(postgresql.url("standby"), serving=True)) as database:
        postgresql.sql('ALTER DATABASE "standby" SET default_transaction_read_only = on')
        with refused(Code.DATABASE_UNUSABLE):
            database.run(liveness.beat)
        with refused(Code.DATABASE_UNUSABLE):
            database.require_usable()
        database.run(health.check, read_only=True)
        with refused(Code.DATABASE_UNUSABLE):
            database.require_usable()
        postgresql.sql('ALTER DATABASE "standby" SET default_transaction_read_only = off')
        database.engine.dispose()
        database.run(lambda session: session.execute(text("SELECT 1")))
        with refused(Code.DATABASE_UNUSABLE):
            database.require_usable()
        database.run(liveness.beat)
        database.require_usable()
    told = [each.getMessage() for each in caplog.records]
    assert "read-only transaction" in told[0]
    assert len(told) == 2
