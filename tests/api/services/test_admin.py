# SPDX-License-Identifier: Apache-2.0
"""``vgpumgr-api`` on the API's own machine."""

import contextlib
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Dialect, Engine, event, select
from vgpumgr_api import admin, config
from vgpumgr_api.actors import SECRET, Actor, authenticate
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Installation
from vgpumgr_api.db.records import AuditEntry, Token
from vgpumgr_api.db.trouble import Trouble, unusable
from vgpumgr_api.fleet import hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.main import main
from vgpumgr_api.resources.paging import PageRequest


@pytest.fixture
def settings(empty_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "api.toml"
    path.write_text(f'database = "{empty_url}"\n')
    return path


def said(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out.strip(), captured.err.strip()


def who(url: str, secret: str) -> Actor:
    database = Database(url)
    actor = database.run(lambda session: authenticate(session, secret))
    database.close()
    return actor


def test_init_makes_a_database_and_an_operator_once(
    settings: Path, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--config", str(settings)]) == 0
    secret, errors = said(capsys)
    assert SECRET.fullmatch(secret)
    assert errors == ""
    assert who(empty_url, secret).role == "operator"
    if empty_url.startswith("sqlite:///"):
        assert stat.S_IMODE(Path(empty_url.removeprefix("sqlite:///")).stat().st_mode) == 0o600

    assert main(["init", "--config", str(settings)]) == 1
    output, errors = said(capsys)
    assert output == ""
    assert "in use already" in errors
    assert len(errors.splitlines()) == 1


def test_a_token_goes_to_a_new_file_of_its_owner_only(
    settings: Path, empty_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "token"
    assert main(["init", "--config", str(settings), "--token-file", str(path)]) == 0
    told, errors = said(capsys)
    assert errors == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text()
    owner = who(empty_url, first.strip())
    assert told == f"token {owner.token_id}, role operator, is in {path}"
    assert main(["create-token", "--config", str(settings), "--token-file", str(path)]) == 1
    assert "exists" in said(capsys)[1]
    assert path.read_text() == first
    other = tmp_path / "other"
    wrong = ["--role", "tenant", "--tenant", "nobody"]
    assert main(["create-token", "--config", str(settings), *wrong, "--token-file", str(other)]) == 1
    assert not other.exists()


def test_tokens_migrations_and_epochs_are_made_on_the_spot(
    settings: Path, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--config", str(settings)]) == 0
    said(capsys)
    assert main(["migrate", "--config", str(settings)]) == 0
    assert said(capsys) == ("nothing to do: the tables are up to date", "")
    assert main(["create-token", "--config", str(settings)]) == 0
    secret = said(capsys)[0]
    actor = who(empty_url, secret)
    assert main(["new-epoch", "--config", str(settings)]) == 0
    epoch, next_step = said(capsys)
    assert next_step.endswith("vgpumgr host confirm-epoch HOST")
    database = Database(empty_url)
    assert database.run(lambda session: hosts.list_hosts(session, actor, PageRequest())).items == []
    database.close()
    assert main(["new-epoch", "--config", str(settings)]) == 0
    assert said(capsys)[0] != epoch
    for wrong, named in (
        (["--tenant", "acme"], "--tenant NAME goes with the roles tenant"),
        (["--role", "tenant"], "role tenant needs --tenant NAME"),
        (["--expires-in-s", "1"], "--expires-in-s: "),
        (["--expires-in", "30s"], "--expires-in: "),
        (["--role", "tenant", "--tenant", "A"], "--tenant: "),
    ):
        assert main(["create-token", "--config", str(settings), *wrong]) == 1
        output, errors = said(capsys)
        assert output == ""
        assert named in errors
        assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("command", [["serve"], ["migrate"], ["new-epoch"], ["create-token"]])
def test_without_a_database_every_command_says_how_to_make_one(
    settings: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--config", str(settings)]) == 1
    output, errors = said(capsys)
    assert output == ""
    assert errors.startswith("vgpumgr-api: ")
    assert "vgpumgr-api init" in errors
    assert not list(settings.parent.glob("*.db"))


def test_an_init_that_was_interrupted_is_finished_by_another(
    settings: Path, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database(empty_url)
    schema.upgrade(database)
    database.close()
    assert main(["serve", "--config", str(settings)]) == 1
    assert "vgpumgr-api init" in said(capsys)[1]
    assert main(["init", "--config", str(settings)]) == 0
    assert who(empty_url, said(capsys)[0]).role == "operator"


def test_what_is_run_here_is_in_the_audit(
    settings: Path, empty_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted() -> list[AuditEntry]:
        database = Database(empty_url)
        found = database.run(lambda session: list(session.scalars(select(AuditEntry).order_by(AuditEntry.id))))
        database.close()
        return found

    assert main(["init", "--config", str(settings)]) == 0
    secret = said(capsys)[0]
    backup = tmp_path / "a.backup"
    assert main(["backup", "--config", str(settings), str(backup)]) == 0
    made = noted()[-1]
    assert (made.action, made.object, made.actor, made.role) == (
        "database.backed_up",
        "a.backup",
        "operator:local",
        "admin",
    )
    rows = int(said(capsys)[0].partition(": ")[2].partition(" ")[0])
    assert (made.detail["rows"], made.detail["step"]) == (rows, schema.newest())
    assert main(["restore", "--config", str(settings), str(backup)]) == 1  # --force is missing
    assert [each.id for each in noted()][-1] == made.id
    assert main(["restore", "--config", str(settings), str(backup), "--force"]) == 0
    assert [each.action for each in noted()] == ["token.created", "epoch.new", "database.restored"]
    detail = noted()[-1].detail
    assert (detail["rows"], detail["forced"], detail["step"]) == (rows, True, schema.newest())
    assert secret not in str([each.detail for each in noted()])


def test_whoever_begins_an_epoch_is_told_which_it_is(
    settings: Path, empty_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "a.backup"
    assert main(["init", "--config", str(settings)]) == 0
    assert main(["backup", "--config", str(settings), str(backup)]) == 0
    database = Database(empty_url)
    epoch = select(Installation.epoch)
    said(capsys)
    assert main(["restore", "--config", str(settings), str(backup), "--force"]) == 0
    restored = database.run(lambda session: session.scalars(epoch).one())
    assert f"\nthe new epoch: {restored}\n" in said(capsys)[1]
    assert main(["new-epoch", "--config", str(settings)]) == 0
    output, errors = said(capsys)
    assert output == str(database.run(lambda session: session.scalars(epoch).one()))  # standard output is for programs
    assert errors.startswith("the new epoch:\n")
    database.close()


def test_how_long_a_token_is_good_is_said_as_to_vgpumgr(
    settings: Path, empty_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def lasts(*words: str) -> timedelta:
        said(capsys)
        assert main(["create-token", "--config", str(settings), *words]) == 0
        actor = who(empty_url, said(capsys)[0])
        database = Database(empty_url)
        made = database.run(lambda session: session.get_one(Token, actor.token_id))
        database.close()
        assert made.expires_at is not None
        return made.expires_at - made.created_at

    assert main(["init", "--config", str(settings)]) == 0
    assert lasts("--expires-in", "90d") == lasts("--expires-in-s", "7776000") == timedelta(days=90)
    with pytest.raises(SystemExit):
        main(["create-token", "--config", str(settings), "--expires-in", "90"])
    assert "--expires-in: duration '90': give a whole number with s, m, h, d or w" in said(capsys)[1]


def test_init_makes_no_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "api.toml"
    settings.write_text(f'database = "sqlite:///{tmp_path}/misspelt/vgpumgr.db"\n')
    assert main(["init", "--config", str(settings)]) == 1
    assert f"{tmp_path}/misspelt: no such directory; create it" in said(capsys)[1]
    assert not (tmp_path / "misspelt").exists()


def test_a_database_that_can_only_be_read_is_backed_up(
    settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--config", str(settings)]) == 0
    said(capsys)
    file, command = tmp_path / "one.backup", ["backup", "--config", str(settings)]
    with only_read():
        assert main([*command, str(file)]) == 0
        output, errors = said(capsys)
        assert output.startswith(f"{file}: ")
        assert errors.splitlines()[-1] == ("the database is read-only, so its audit has no entry about this backup")
        assert main(["create-token", "--role", "viewer", "--config", str(settings)]) == 1
        assert "the database can only be read" in said(capsys)[1]
    assert admin.check_backup(file).rows > 0
    assert main([*command, str(tmp_path / "two.backup")]) == 0
    assert said(capsys)[1] == ""


def test_a_backup_fails_with_what_else_is_wrong_with_the_database(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--config", str(settings)]) == 0

    def full(*_: object) -> None:
        raise unusable(Trouble.FULL)

    monkeypatch.setattr(installation, "backed_up", full)
    assert main(["backup", "--config", str(settings), str(tmp_path / "one.backup")]) == 1
    assert "is full" in said(capsys)[1]


@contextlib.contextmanager
def only_read() -> Iterator[None]:
    """Makes the database itself refuse every change."""

    def open_file(dialect: Dialect, _: object, arguments: list[str], options: dict[str, Any]) -> None:
        if dialect.name == "sqlite":
            arguments[0] = f"file:{arguments[0]}?mode=ro"
            options["uri"] = True

    def begin(connection: Connection) -> None:
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    event.listen(Engine, "do_connect", open_file)
    event.listen(Engine, "begin", begin)
    try:
        yield
    finally:
        event.remove(Engine, "begin", begin)
        event.remove(Engine, "do_connect", open_file)


def test_a_server_that_is_away_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "api.toml"
    settings.write_text(f'database = "postgresql://nobody@/nothing?host={tmp_path}"\n')
    for command in (["init"], ["migrate"], ["serve"], ["new-epoch"]):
        assert main([*command, "--config", str(settings)]) == 1
        errors = said(capsys)[1]
        assert errors.startswith("vgpumgr-api: the database cannot be used")
        assert len(errors.splitlines()) == 1


def test_a_file_that_is_of_no_use_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, file = tmp_path / "api.toml", tmp_path / "vgpumgr.db"
    settings.write_text(f'database = "sqlite:///{file}"\n')
    file.write_bytes(b"no database " * 100)
    for command in (["init"], ["migrate"], ["serve"], ["backup", str(tmp_path / "backup")]):
        assert main([*command, "--config", str(settings)]) == 1
        assert said(capsys)[1] == f"vgpumgr-api: the database {file} cannot be used: file is not a database"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("database = ", "not TOML"),
        ("databse = 'x'", "databse"),
        ("listen_port = 'x'", "listen_port"),
        ("listen_port = true", "listen_port"),
        ("listen_port = 65536", "listen_port"),
        ("lease_s = 1", "lease_s"),
        ("database = 'x'", "database"),
        ("database = 'mysql://x/y'", "mysql"),
        ("database = 'sqlite://'", "database"),
        ("database = 'sqlite:///:memory:'", "database"),
        ("database = 'postgresql://x:y:z/w'", "database"),
        ("tls_key = 'x'", "tls_certificate"),
        ("\xff", "not TOML"),
    ],
)
def test_settings_that_make_no_sense_are_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "api.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(config.ConfigError, match=named) as raised:
        config.load(path)
    assert len(str(raised.value).splitlines()) == 1


def test_settings_have_defaults_and_paths_are_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "api.toml"
    path.write_text("")
    assert config.load(path) == config.Config()
    path.write_text("tls_certificate = 'c.pem'\ntls_key = '/etc/k.pem'\n")
    assert (config.load(path).tls_certificate, config.load(path).tls_key) == (tmp_path / "c.pem", Path("/etc/k.pem"))
    with pytest.raises(config.ConfigError, match="no such file"):
        config.load(tmp_path / "none")
