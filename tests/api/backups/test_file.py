# SPDX-License-Identifier: Apache-2.0
"""A backup file is either whole or rejected."""

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_api.backups import make, restore
from vgpumgr_api.backups.columns import kind_of
from vgpumgr_api.backups.file import HEADER_BYTES, BackupError, Header, write_body, write_header
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base

from tests.api.backups.content import in_use


@pytest.fixture
def backup(database: Database, tmp_path: Path) -> Path:
    in_use(database)
    path = tmp_path / "a.backup"
    make.make(database, path)
    return path


def rewritten(path: Path, lines: list[Any] | None = None, **header: Any) -> Path:
    """Returns the same file with another header or body, and with the checksum that fits it."""
    with path.open("r+b") as file:
        said = Header.model_validate_json(file.read(HEADER_BYTES)).model_copy(update=header)
        if lines is not None:
            write_body(file, lines)
        write_header(file, said)
    return path


def refused(path: Path) -> str:
    with pytest.raises(BackupError) as error:
        restore.check(path)
    said = str(error.value)
    assert "\n" not in said
    return said


def test_its_header_says_what_it_is_and_only_its_owner_reads_it(database: Database, backup: Path) -> None:
    said = json.loads(backup.read_bytes()[:HEADER_BYTES])
    assert said["format"] == "vgpumgr-backup"
    assert set(said) == {
        *("format", "format_version", "release", "revision", "epoch"),
        *("installed_at", "made_at", "rows", "checksum"),
    }
    assert restore.check(backup) == Header.model_validate(said)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert list(backup.parent.glob("*.part")) == []


def test_every_column_of_every_table_can_be_carried() -> None:
    for table in Base.metadata.sorted_tables:
        for column in table.columns:
            assert kind_of(column)


def test_any_flipped_bit_and_any_missing_byte_is_found(backup: Path, tmp_path: Path) -> None:
    whole = backup.read_bytes()
    rng = random.Random(6)
    damaged = tmp_path / "damaged"
    places = [rng.randrange(len(whole)) for _ in range(60)] + list(range(0, HEADER_BYTES, 5))
    for place in places:
        bad = bytearray(whole)
        bad[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(bad)
        assert "is not a backup" not in refused(damaged)
    for length in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, len(whole) - 1):
        damaged.write_bytes(whole[:length])
        assert refused(damaged)
    for length in (HEADER_BYTES // 2, HEADER_BYTES - 1):
        damaged.write_bytes(whole[:length])
        assert "damaged" in refused(damaged)
    damaged.write_bytes(whole + b"\0")
    assert "damaged" in refused(damaged)


def test_what_is_no_backup_or_a_newer_one_is_named_so(backup: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for foreign in (b"PGDMP" + bytes(2000), b"SQLite format 3\0" + bytes(2000), b"[]", b"{}", b"\xff" * 2000):
        other.write_bytes(foreign)
        assert "is not a backup of vgpumgr-api" in refused(other)
    assert "newer than this program" in refused(rewritten(backup, revision="9999"))
    assert "is of format 2" in refused(rewritten(backup, format_version=2))


def test_a_body_that_lacks_rows_is_refused_whatever_its_checksum(backup: Path) -> None:
    assert "rows" in refused(rewritten(backup, lines=[]))


def test_none_is_overwritten_and_one_that_fails_leaves_nothing(
    database: Database, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = backup.read_bytes()
    with pytest.raises(BackupError, match="exists"):
        make.make(database, backup)
    assert backup.read_bytes() == whole
    with pytest.raises(BackupError, match=r"misspelt: no such directory; create it"):
        make.make_in(database, backup.parent / "misspelt", keep=1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vgpumgr_api.backups.make.write_header", fail)
    with pytest.raises(OSError, match="space"):
        make.make(database, backup.with_name("b.backup"))
    assert sorted(path.name for path in backup.parent.glob("*backup*")) == ["a.backup"]


def test_in_a_directory_the_last_ones_stay(database: Database, tmp_path: Path) -> None:
    for day in range(1, 6):
        (tmp_path / f"vgpumgr-2026010{day}T000000Z.backup").touch()
    (tmp_path / "vgpumgr-yesterday.backup").touch()
    path, _ = make.make_in(database, tmp_path, keep=3)
    left = sorted(each.name for each in tmp_path.glob("*.backup"))
    assert left == sorted(
        [path.name, "vgpumgr-20260104T000000Z.backup", "vgpumgr-20260105T000000Z.backup", "vgpumgr-yesterday.backup"]
    )
