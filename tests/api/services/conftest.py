# SPDX-License-Identifier: Apache-2.0
"""A database as the first release made it."""

from collections.abc import Iterator

import pytest
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

from tests.api.services.tables import FIRST, ROWS, add


@pytest.fixture
def old_url(empty_url: str) -> str:
    """A database of the first release."""
    made = Database(empty_url)
    with made.engine.begin() as connection:
        schema.upgrade_to(connection, FIRST)
    made.close()
    return empty_url


@pytest.fixture
def used(old_url: str) -> Iterator[Database]:
    """A database of the first release, in use."""
    database = Database(old_url)
    for table, row in ROWS:
        add(database, table, **row)
    yield database
    database.close()
