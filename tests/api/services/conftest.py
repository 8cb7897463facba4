# SPDX-License-Identifier: Apache-2.0
"""A database as the first release made it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from vgpumgr_api.db.database import Database

from tests.api.services.tables import make_old, make_used
from tests.api.templates import Templates


@pytest.fixture
def old_url(templates: Templates, engine_name: str, tmp_path: Path) -> Iterator[str]:
    """A database of the first release, without content."""
    with templates.copied(engine_name, "old", make_old, tmp_path) as url:
        yield url


@pytest.fixture
def used(templates: Templates, engine_name: str, tmp_path: Path) -> Iterator[Database]:
    """A database of the first release with content."""
    with templates.copied(engine_name, "used", make_used, tmp_path) as url:
        database = Database(url)
        yield database
        database.close()
