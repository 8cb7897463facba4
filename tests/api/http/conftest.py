# SPDX-License-Identifier: Apache-2.0
"""`cloud`: the application on each kind of database that `database` offers."""

from collections.abc import Iterator

import pytest
from vgpumgr_api.db.database import Database

from tests.api.http.cloud import Cloud


@pytest.fixture
def cloud(database: Database) -> Iterator[Cloud]:
    made = Cloud(database)
    # All requests share one event loop, like in a server.
    with made.http:
        yield made
