# SPDX-License-Identifier: Apache-2.0
"""Databases that are made once and copied for each test, because migrations take longer than copies."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from vgpumgr_api.db.database import Database

from tests.api.cluster import Cluster

Make = Callable[[Database], None]

_NUMBERS = count(1)


class Templates:
    """`cluster`: starts PostgreSQL when its first database is requested. A template's name identifies its `make`."""

    def __init__(self, cluster: Callable[[], Cluster], directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._made: set[str] = set()

    def file(self, name: str, make: Make) -> Path:
        """Returns an SQLite template."""
        path = self._directory / f"{name}.db"
        self._once(f"sqlite:///{path}", make)
        return path

    def database(self, name: str, make: Make) -> str:
        """Returns the name of a PostgreSQL template."""
        cluster, template = self._cluster(), f"template_{name}"
        if cluster.url(template) not in self._made:
            cluster.create(template)
        self._once(cluster.url(template), make)
        return template

    @contextlib.contextmanager
    def copied(self, engine_name: str, name: str, make: Make, directory: Path) -> Iterator[str]:
        """Yields the URL of a copy; an SQLite copy is a file in the directory."""
        if engine_name == "sqlite":
            path = directory / "vgpumgr.db"
            shutil.copyfile(self.file(name, make), path)
            yield f"sqlite:///{path}"
            return
        copy = f"test_{next(_NUMBERS)}"
        yield self._cluster().create(copy, template=self.database(name, make))
        self._cluster().drop(copy)

    def _once(self, url: str, make: Make) -> None:
        if url not in self._made:
            made = Database(url)
            make(made)
            made.close()
            self._made.add(url)
