# SPDX-License-Identifier: Apache-2.0
"""A process that is killed in the middle: a restore has changed nothing, and a backup leaves no file that looks
complete.
"""

import signal
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from vgpumgr_api.admin import ACTOR
from vgpumgr_api.backups import make, restore
from vgpumgr_api.db.database import Database

from tests.api.backups.content import content, in_use
from tests.api.forked import Forked


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "api.toml"
    path.write_text(f'database = "{database_url}"\n')
    return path


def killed(at: tuple[str, str], *command: object) -> None:
    """The command dies when it calls this function."""
    with NamedTemporaryFile() as errors:
        process = Forked(command, errors=Path(errors.name), dies_at=at)
        assert process.wait(120) == -signal.SIGKILL, Path(errors.name).read_text()


def test_a_restore_is_whole_or_did_not_happen(database: Database, settings: Path, tmp_path: Path) -> None:
    world = in_use(database)
    path = tmp_path / "a.backup"
    make.make(database, path)
    before = content(database, but_for_restore=True)
    world.tenant("since")
    since = content(database)
    words = ("restore", "--config", settings, "--force", path)
    for step in ("_load", "_set_row_numbers"):
        killed(("vgpumgr_api.backups.restore", step), *words)
        assert content(database) == since
    restore.restore(database, path, ACTOR, force=True)
    assert content(database, but_for_restore=True)["slices"] == before["slices"]


def test_of_a_backup_no_file_is_left(database: Database, settings: Path, tmp_path: Path) -> None:
    in_use(database)
    path = tmp_path / "a.backup"
    words = ("backup", "--config", settings, path)
    killed(("vgpumgr_api.backups.make", "write_header"), *words)
    assert not path.exists()
    make.make(database, path)
    assert restore.check(path).rows > 0
    assert not path.with_name("a.backup.part").exists()
