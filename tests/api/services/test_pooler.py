# SPDX-License-Identifier: Apache-2.0
"""PgBouncer before PostgreSQL: session pooling works, transaction and statement pooling are refused at the start."""

import contextlib
from pathlib import Path

import pytest
from sqlalchemy import text
from vgpumgr_api import admin
from vgpumgr_api.config import Config
from vgpumgr_api.db.database import LOCK_S, STATEMENT_S, Database
from vgpumgr_api.db.pooler import PoolerError
from vgpumgr_api.main import main

from tests.api.cluster import Cluster
from tests.api.http.process import settings_file
from tests.api.pgbouncer import bouncing

USUAL = "extra_float_digits,options"


@pytest.mark.parametrize("ignored", ["", USUAL])
@pytest.mark.parametrize(
    ("mode", "reason"), [("transaction", "pool_mode = session"), ("statement", "statement pooling mode")]
)
def test_a_pooler_that_lends_processes_is_refused_with_a_reason(
    postgresql: Cluster,
    tmp_path: Path,
    mode: str,
    reason: str,
    ignored: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"bounced-{mode}-{len(ignored)}"
    admin.initialise(Config(database=postgresql.create(name)))
    postgresql.create(f"{name}-new")
    with bouncing(postgresql, tmp_path, pool_mode=mode, ignored=ignored) as url:
        for command, database in (("init", f"{name}-new"), ("serve", name), ("migrate", name), ("backup", name)):
            settings = settings_file(tmp_path, database=url.format(name=database))
            file = [str(tmp_path / "backup")] if command == "backup" else []
            assert main([command, *file, "--config", str(settings)]) == 1
            assert reason in capsys.readouterr().err
    with contextlib.closing(Database(postgresql.url(name))) as direct:
        direct.require_own_processes()


def test_the_same_is_noticed_while_others_use_the_pooler(
    postgresql: Cluster, postgresql_template: str, tmp_path: Path
) -> None:
    """The other clients leave spare server processes, so two of our connections rarely share one."""
    postgresql.create("crowded", template=postgresql_template)
    with (
        bouncing(postgresql, tmp_path, pool_mode="transaction", ignored=USUAL) as url,
        contextlib.closing(Database(url.format(name="crowded"))) as others,
        contextlib.closing(Database(url.format(name="crowded"))) as database,
    ):
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(others.engine.connect()).execute(text("SELECT 1"))
        with pytest.raises(PoolerError):
            database.require_own_processes()


@pytest.mark.parametrize("ignored", ["", USUAL])
def test_by_the_session_all_limits_hold(postgresql: Cluster, tmp_path: Path, ignored: str) -> None:
    name = f"bounced-session-{len(ignored)}"
    postgresql.create(name)
    with bouncing(postgresql, tmp_path, pool_mode="session", ignored=ignored) as url:
        config = Config(database=url.format(name=name))
        admin.initialise(config)
        admin.checked(config).close()
        with (
            contextlib.closing(Database(config.database, serving=True)) as database,
            database.engine.connect() as connection,
        ):
            names = ("lock_timeout", "statement_timeout", "jit")
            found = {setting: connection.scalar(text(f"SHOW {setting}")) for setting in names}
    assert found == {"lock_timeout": f"{LOCK_S:g}s", "statement_timeout": f"{STATEMENT_S:g}s", "jit": "off"}
