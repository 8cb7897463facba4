# SPDX-License-Identifier: Apache-2.0
"""Run by alembic. `vgpumgr_api.db.schema` passes its connection; alembic's own command needs ``-x database=URL``."""

from alembic import context
from sqlalchemy import Connection

# Importing these modules registers their tables with Base.metadata.
from vgpumgr_api.db import labels, ledger, observations, progress, records, reservations  # noqa: F401
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base


def migrate(connection: Connection) -> None:
    """Run the requested migrations in one transaction, also on SQLite."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    with Database(context.get_x_argument(as_dictionary=True)["database"]).engine.begin() as own:
        migrate(own)
