# SPDX-License-Identifier: Apache-2.0
"""A database as the first release made it."""

import pytest
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

FIRST = "0001"


@pytest.fixture
def old_url(empty_url: str) -> str:
    """A database of the first release."""
    made = Database(empty_url)
    with made.engine.begin() as connection:
        schema.upgrade_to(connection, FIRST)
    made.close()
    return empty_url
