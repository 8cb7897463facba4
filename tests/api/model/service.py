# SPDX-License-Identifier: Apache-2.0
"""The service under test: real processes on a real database, either of which can be killed at any moment."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from vgpumgr_api.admin import backup, restore
from vgpumgr_api.claims import reservations
from vgpumgr_api.config import Config
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.reservations import Reservation

from tests.api.cluster import Cluster
from tests.api.concurrency.deployment import Caller, Deployment, Reply

BLOWS = {"nothing": 14, "connections": 3, "api": 1}
"""What may happen to a request under way, with weights: the API is killed, or all its database connections are."""
SOON_S = 0.05


class Service:
    """`cluster` None means SQLite. Belongs to one thread, which sends requests and strikes blows."""

    def __init__(self, deployment: Deployment, directory: Path, cluster: Cluster | None = None) -> None:
        self.deployment = deployment
        self.operator = deployment.caller()
        self.story: list[str] = []
        self._cluster = cluster
        self._kept = directory / "backup"
        self._rng = random.Random(7)

    @property
    def url(self) -> str:
        return self.deployment.url

    def ask(self, caller: Caller, *arguments: Any, blow: str, **options: Any) -> Reply:
        """Sends a request that meets `blow` on its way."""
        reply = self._asked(caller, *arguments, blow=blow, **options)
        self.story.append(f"{' '.join(map(str, arguments))} {blow}: {reply.status} {reply.code}")
        return reply

    def _asked(self, caller: Caller, *arguments: Any, blow: str, **options: Any) -> Reply:
        if blow == "nothing" or (blow == "connections" and self._cluster is None):
            return caller.ask(*arguments, **options)
        found: list[Reply] = []
        asking = threading.Thread(target=lambda: found.append(caller.ask(*arguments, **options)))
        asking.start()
        time.sleep(self._rng.uniform(0, SOON_S))
        if blow == "api":
            self._away(lambda: None)
        else:
            self._cut()
        asking.join()
        assert found, f"{arguments}: no answer"
        return found[0]

    def backup(self) -> None:
        """Makes a backup while the service runs."""
        self.story.append("backup")
        database = Database(self.url)
        self._kept.unlink(missing_ok=True)
        backup(database, self._kept, directory=None, keep=1)
        database.close()

    def restore(self) -> None:
        """Restores the backup while the service is stopped."""
        self.story.append("restore")
        self._away(lambda: restore(Config(database=self.url), self._kept, force=True))

    def pass_time(self, host: str, passed: timedelta) -> None:
        """Makes the host look as if it had been silent for this time."""
        self.story.append(f"{host} was not heard of for {passed}")
        database = Database(self.url)

        def earlier(session: Session) -> None:
            row = session.scalars(select(Host).where(Host.name == host)).one()
            report = session.get_one(HostReport, row.id)
            row.enrolled_at = row.enrolled_at and row.enrolled_at - passed
            report.reported_at = report.reported_at and report.reported_at - passed

        database.run(earlier)
        database.close()

    def let_expire(self, reservation: str) -> None:
        """Makes a reservation expire."""
        self.story.append(f"reservation {reservation} expires")
        database = Database(self.url)

        def expired(session: Session) -> None:
            row = session.get_one(Reservation, UUID(reservation))
            row.expires_at = row.created_at

        database.run(expired)
        database.close()

    def give_expired_back(self) -> None:
        """Does at once what the service does from time to time."""
        database = Database(self.url)
        while database.run(reservations.expire):
            pass
        database.close()

    def _away(self, meanwhile: Callable[[], object]) -> None:
        for replica in self.deployment.replicas:
            replica.kill()
        meanwhile()
        for replica in self.deployment.replicas:
            replica.start()

    def _cut(self) -> None:
        assert self._cluster is not None
        with psycopg.connect(self._cluster.url("postgres"), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [make_url(self.url).database],
            )
