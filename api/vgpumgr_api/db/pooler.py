# SPDX-License-Identifier: Apache-2.0
"""Checks that a connection to PostgreSQL keeps its server process and is not multiplexed by a transaction pooler.

Session settings and prepared statements belong to the server process. A connection that is switched to another process
has none of them, or those of another client. PgBouncer switches processes with `pool_mode = transaction`; with
`statement` it rejects transactions.
"""

from sqlalchemy import Engine, text

ATTEMPTS = 8

ADVICE = (
    "a pooler gives each transaction another process of PostgreSQL (pool_mode = transaction); use"
    " pool_mode = session, or let `database` name PostgreSQL itself"
)

_PROCESS = text("SELECT pg_backend_pid()")


class PoolerError(Exception):
    """The pooler cannot be used. The message says what to do."""


def require_own_process(engine: Engine) -> None:
    """Raises PoolerError if two connections share a server process. Costs one statement if there is no pooler."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        driver = connection.connection.driver_connection
        announced = None if driver is None else driver.info.backend_pid
        if connection.scalar(_PROCESS) == announced:
            return
        for _ in range(ATTEMPTS):
            # With a transaction pooler, this server process is idle now, and the pooler gives it to the other
            # connection.
            before = connection.scalar(_PROCESS)
            with engine.connect() as other, other.begin():
                others = other.scalar(_PROCESS)
                if before in (others, None) or connection.scalar(_PROCESS) != before:
                    raise PoolerError(ADVICE)
