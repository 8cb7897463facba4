# SPDX-License-Identifier: Apache-2.0
"""Whether a connection to PostgreSQL keeps its server process, or a pooler lends it another one for each transaction.

Settings of the session and prepared statements belong to the server's process. Whoever gets another process has
neither, or those of somebody else. PgBouncer does so with `pool_mode = transaction`; with `statement` it
refuses transactions.
"""

from sqlalchemy import Engine, text

ATTEMPTS = 8

ADVICE = (
    "a pooler gives each transaction another process of PostgreSQL (pool_mode = transaction); use"
    " pool_mode = session, or let `database` name PostgreSQL itself"
)

_PROCESS = text("SELECT pg_backend_pid()")


class PoolerError(Exception):
    """The pooler is of no use; the message says what to do."""


def require_own_process(engine: Engine) -> None:
    """Raises PoolerError where two connections share a process. Costs one statement where there is no pooler."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = connection.connection.driver_connection
        announced = None if driver is None else driver.info.backend_pid
        if connection.scalar(_PROCESS) == announced:
            return
        for _ in range(ATTEMPTS):
            # A pooler that lends processes has this one to spare now, and keeps what the other one gets from it.
            before = connection.scalar(_PROCESS)
            with engine.connect() as other, other.begin():
                others = other.scalar(_PROCESS)
                if before in (others, None) or connection.scalar(_PROCESS) != before:
                    raise PoolerError(ADVICE)
