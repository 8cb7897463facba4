# SPDX-License-Identifier: Apache-2.0
"""The command ``vgpumgr-api``. Exit status: 0 done, 1 refused or failed (one line says why), 2 wrong usage."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from pydantic import ValidationError

from vgpumgr import __version__
from vgpumgr.durations import parse_duration
from vgpumgr.errors import ArgumentError
from vgpumgr.wire.resources import TokenCreate, TokenCreated, TokenRole
from vgpumgr_api import admin
from vgpumgr_api.admin import AdminError
from vgpumgr_api.auth import agent_ca, agent_ca_rotation
from vgpumgr_api.auth.agent_ca import CaError
from vgpumgr_api.backups.file import BackupError, Header
from vgpumgr_api.config import DEFAULT_PATH, Config, ConfigError, load
from vgpumgr_api.db.pooler import PoolerError
from vgpumgr_api.db.schema import SchemaError
from vgpumgr_api.errors import Refusal

UNCONFIRMED = """\
Every host is unconfirmed now and deletes nothing. Start the API, compare `vgpumgr get slices --host HOST` with what
runs there, and then let each host obey deletions again: vgpumgr host confirm-epoch HOST"""

RESTORED = f"""\
Tokens that were revoked since the backup are valid again, and those created since are not. One-time tokens that enrol
a host are void: vgpumgr host reenroll HOST.
{UNCONFIRMED}"""


def run(arguments: list[str] | None = None) -> None:
    """Runs one command and ends the process."""
    sys.exit(main(sys.argv[1:] if arguments is None else arguments))


def main(arguments: list[str]) -> int:
    """Runs one command and returns the exit status."""
    from vgpumgr_api.edge.transport.listen import ListenError

    chosen = _parser().parse_args(arguments)
    try:
        config = load(chosen.config)
        match chosen.command:
            case "init":
                _hand_over(chosen.token_file, lambda: admin.initialise(config))
            case "migrate":
                print(admin.migrate(config))
            case "create-token":
                _hand_over(chosen.token_file, lambda: _token(config, chosen))
            case "new-epoch":
                with contextlib.closing(admin.checked(config)) as database:
                    epoch = admin.new_epoch(database)
                print("the new epoch:", file=sys.stderr)
                print(epoch)
                print(UNCONFIRMED, file=sys.stderr)
            case "backup":
                _backup(config, chosen)
            case "restore":
                _restore(config, chosen)
            case "create-agent-ca":
                _create_agent_ca(config)
            case "rotate-agent-ca":
                _rotate_agent_ca(config, chosen)
            case "serve":
                _serve(config)
    except (AdminError, BackupError, CaError, ConfigError, ListenError, PoolerError, SchemaError) as error:
        return _fail(str(error))
    except Refusal as error:
        return _fail(error.detail)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    return 0


CREATABLE = [role.value for role in TokenRole if role is not TokenRole.HOST]
OF_A_TENANT = (TokenRole.TENANT, TokenRole.TENANT_ADMIN)
_OPTIONS: dict[int | str, str] = {"role": "--role", "subject": "--tenant"}


def _create_agent_ca(config: Config) -> None:
    agent_ca.create(*_ca_files(config, "to create"), now=datetime.now(UTC))


def _rotate_agent_ca(config: Config, chosen: argparse.Namespace) -> None:
    certificate, key = _ca_files(config, "of the authority")
    now = datetime.now(UTC)
    if chosen.force and chosen.step != "end":
        raise AdminError("--force goes only with the step end")
    match chosen.step:
        case "begin":
            agent_ca_rotation.begin(certificate, key, now=now)
        case "switch":
            agent_ca_rotation.switch(certificate, key, now=now)
        case "end":
            life_s = config.agent_certificate_life_s
            agent_ca_rotation.end(certificate, key, life_s=life_s, now=now, force=chosen.force)
    print(agent_ca_rotation.describe(certificate, key))


def _ca_files(config: Config, what: str) -> tuple[Path, Path]:
    if config.agent_ca_certificate is None or config.agent_ca_key is None:
        raise AdminError(f"name agent_ca_certificate and agent_ca_key in the settings: the files {what}")
    return config.agent_ca_certificate, config.agent_ca_key


def _backup(config: Config, chosen: argparse.Namespace) -> None:
    with contextlib.closing(admin.checked(config)) as database:
        path, header, noted = admin.backup(database, chosen.file, directory=chosen.directory, keep=chosen.keep)
    print(f"{path}: {_said(header)}")
    if not noted:
        print("the database is read-only, so its audit has no entry about this backup", file=sys.stderr)


def _restore(config: Config, chosen: argparse.Namespace) -> None:
    if chosen.check:
        print(f"{chosen.file}: whole, and can be restored: {_said(admin.check_backup(chosen.file))}")
        return
    header, epoch = admin.restore(config, chosen.file, force=chosen.force)
    print(f"restored {_said(header)}", f"the new epoch: {epoch}", RESTORED, sep="\n", file=sys.stderr)


def _said(header: Header) -> str:
    return (
        f"{header.rows} rows as of {header.made_at:%Y-%m-%d %H:%M:%S} UTC, release {header.release}, "
        f"schema step {header.revision}, epoch {header.epoch}"
    )


def _serve(config: Config) -> None:
    from vgpumgr_api.server import serve

    admin.checked(config).close()
    serve(config)


def _token(config: Config, chosen: argparse.Namespace) -> TokenCreated:
    if chosen.tenant is None and chosen.role in OF_A_TENANT:
        raise AdminError(f"role {chosen.role} needs --tenant NAME")
    if chosen.tenant is not None and chosen.role not in (*OF_A_TENANT, TokenRole.VIEWER):
        raise AdminError("--tenant NAME goes with the roles tenant, tenant-admin and viewer, and with no other")
    life_s, life = chosen.expires_in, "--expires-in"
    if life_s is None:
        life_s, life = chosen.expires_in_s, "--expires-in-s"
    try:
        request = TokenCreate(role=chosen.role, subject=chosen.tenant, expires_in_s=life_s)
    except ValidationError as error:
        first = error.errors()[0]
        raise AdminError(f"{_OPTIONS.get(first['loc'][0], life)}: {first['msg']}") from None
    with contextlib.closing(admin.checked(config)) as database:
        return admin.create_token(database, request)


def _hand_over(path: Path | None, make: Callable[[], TokenCreated]) -> None:
    """Prints the token, or the file that it is in and the id by which it can be revoked."""
    with _secret_to(path) as file:
        made = make()
        print(made.secret, file=file)
    if path is not None:
        print(f"token {made.id}, role {made.role}, is in {path}")


@contextlib.contextmanager
def _secret_to(path: Path | None) -> Iterator[TextIO]:
    """Opens a new file that only its owner can read, or standard output without a path. Removes the file on failure."""
    if path is None:
        yield sys.stdout
        return
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise AdminError(f"{path} exists; name a file that does not") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _fail(why: str) -> int:
    print(f"vgpumgr-api: {why}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--config", type=Path, default=DEFAULT_PATH, metavar="FILE", help="settings (%(default)s)")
    secret = argparse.ArgumentParser(add_help=False)
    secret.add_argument("--token-file", type=Path, metavar="FILE", help="write the token there, not to the terminal")

    parser = argparse.ArgumentParser(prog="vgpumgr-api", description="The REST service of vgpumgr.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"vgpumgr-api {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str, *parents: argparse.ArgumentParser, more: str = "") -> argparse.ArgumentParser:
        said = f"{what} {more}".strip()
        return commands.add_parser(name, help=what, description=said, parents=[shared, *parents], allow_abbrev=False)

    command("init", "Create the database and print the first operator's token, once.", secret)
    command(
        "migrate",
        "Bring the database's tables up to date.",
        more="API processes of the older release refuse all requests from then on: restart them. A step that fails"
        " leaves the database as it was.",
    )
    command(
        "serve",
        "Serve until SIGTERM.",
        more="Requests under way are answered first, for 10 s at most; a second signal ends the process at once.",
    )
    command("create-agent-ca", "Create the authority that issues agents' certificates, in the files of the settings.")
    rotate = command(
        "rotate-agent-ca",
        "Replace the authority of hosts' agents, step by step.",
        more="After each step restart every API. After begin, the next authority is accepted; after switch, it issues "
        "the certificates; after end, the former one is no longer accepted.",
    )
    rotate.add_argument("step", choices=("begin", "switch", "end"))
    rotate.add_argument(
        "--force", action="store_true", help="end although agents may have certificates of the former authority"
    )
    create = command("create-token", "Create a token without having one, and print it, once.", secret)
    create.add_argument("--role", choices=CREATABLE, default=TokenRole.OPERATOR.value, help="(%(default)s)")
    create.add_argument(
        "--tenant", metavar="NAME", help="the token's tenant, for the roles tenant, tenant-admin and viewer"
    )
    until = create.add_mutually_exclusive_group()
    until.add_argument("--expires-in", type=_duration, metavar="DURATION", help="such as 12h or 30d (default: never)")
    until.add_argument("--expires-in-s", type=int, metavar="SECONDS", help="the same in seconds")
    backup = command(
        "backup",
        "Write everything in the database to a file; the API may run.",
        more="Only its owner can read the file: it contains the hashes of all credentials, and who uses what.",
    )
    where = backup.add_mutually_exclusive_group(required=True)
    where.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a file that does not exist yet")
    where.add_argument("--directory", type=Path, help="create a file there, named after the time")
    backup.add_argument(
        "--keep", type=_count, default=14, metavar="N", help="with --directory: remove all but the last N (%(default)s)"
    )
    restore = command(
        "restore",
        "Replace the database with a backup; hosts delete nothing until each is confirmed.",
        more="Stop the API first. A restore that fails changes nothing. The backup may come from either engine.",
    )
    restore.add_argument("file", type=Path, metavar="FILE", help="a file written by vgpumgr-api backup")
    restore.add_argument(
        "--force", action="store_true", help="replace even a database that is in use; its contents are lost"
    )
    restore.add_argument(
        "--check", action="store_true", help="only check whether the file is whole and can be restored"
    )
    command("new-epoch", "Declare that the database was restored by other means: hosts delete nothing until confirmed.")
    return parser


def _duration(said: str) -> int:
    try:
        return parse_duration(said)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(said: str) -> int:
    if not said.isdecimal() or not 1 <= int(said) <= 10_000:
        raise argparse.ArgumentTypeError("not between 1 and 10000")
    return int(said)


if __name__ == "__main__":
    run()
