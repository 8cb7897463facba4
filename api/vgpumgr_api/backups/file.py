# SPDX-License-Identifier: Apache-2.0
"""The format of a backup file.

    header    1024 bytes: one JSON object, blanks, a line feed
    body      gzip of JSON lines: per table {"table": ..., "columns": {name: kind}}, then each row as an array, and at
              the end {"rows": the number of rows}

The header's `checksum` is the SHA-256 of the header with an empty checksum, followed by the body. Column kinds are
those of `columns`, so a file does not depend on the engine that it comes from.
"""

import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

FORMAT = "vgpumgr-backup"
FORMAT_VERSION = 1
HEADER_BYTES = 1024
GZIP = b"\x1f\x8b"
"""The beginning of the body: RFC 1952, section 2.3.1."""

PIECE_BYTES = 1 << 20
MODE = 0o600


class BackupError(Exception):
    """A backup cannot be made or used. The message is one line that names the file."""


class Header(BaseModel):
    """The header of a backup. `revision`: the schema revision. `installed_at` distinguishes installations."""

    model_config = ConfigDict(extra="forbid")

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    release: str
    revision: str
    epoch: UUID
    installed_at: datetime
    made_at: datetime
    rows: int
    checksum: str = ""

    def encoded(self) -> bytes:
        said = self.model_dump_json().encode()
        if len(said) >= HEADER_BYTES:
            raise BackupError(f"the header of a backup has no room for {len(said)} bytes")
        return said.ljust(HEADER_BYTES - 1) + b"\n"

    def digest(self) -> "hashlib._Hash":
        """Returns a hash of this header. The caller adds the body to it."""
        return hashlib.sha256(self.model_copy(update={"checksum": ""}).encoded())


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file that only its owner can read. It gets its name once it is complete. Never overwrites a file."""
    if path.exists():
        raise BackupError(f"{path} exists; name a file that does not")
    if not path.parent.is_dir():
        raise BackupError(f"{path.parent}: no such directory; create it, owned by the user that makes backups")
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, MODE)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)
    except FileExistsError:
        raise BackupError(f"{path} exists; name a file that does not") from None
    finally:
        part.unlink(missing_ok=True)
    _sync_directory(path.parent)


def write_body(file: IO[bytes], lines: Iterable[Any]) -> int:
    """Writes `lines` after the space for the header, replacing any earlier attempt. Returns the number of rows.

    The lines that begin a table are not rows.
    """
    file.seek(HEADER_BYTES)
    file.truncate()
    rows = 0
    with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as body:
        for line in lines:
            rows += isinstance(line, list)
            body.write(_line(line))
        body.write(_line({"rows": rows}))
    return rows


def write_header(file: IO[bytes], header: Header) -> Header:
    """Writes the header of a file that has its body. Returns the header with its checksum."""
    complete = header.model_copy(update={"checksum": _digest(file, header)})
    file.seek(0)
    file.write(complete.encoded())
    return complete


@contextlib.contextmanager
def verified(path: Path) -> Iterator[tuple[Header, Iterator[Any]]]:
    """Yields the header and the body's lines, except the last, of an intact file. Raises BackupError for others."""
    with path.open("rb") as file:
        header = _header(path, file)
        if _digest(file, header) != header.checksum:
            raise BackupError(f"{path} is damaged: its checksum does not match; use another backup")
        file.seek(HEADER_BYTES)
        with gzip.GzipFile(fileobj=file, mode="rb") as body:
            yield header, _rows(path, header, body)


def _header(path: Path, file: IO[bytes]) -> Header:
    said, after = file.read(HEADER_BYTES), file.read(len(GZIP))
    try:
        members = json.loads(said)
    except ValueError:
        members = None
    if not isinstance(members, dict) or members.get("format") != FORMAT:
        if FORMAT.encode() in said or after == GZIP:
            raise BackupError(f"{path} is damaged: its header cannot be read; use another backup")
        raise BackupError(f"{path} is not a backup of vgpumgr-api")
    if members.get("format_version") != FORMAT_VERSION:
        raise BackupError(
            f"{path} is of format {members.get('format_version')!r}, this program reads {FORMAT_VERSION}; use the"
            f" release that made it, {members.get('release')!r}, or a newer one"
        )
    try:
        header = Header.model_validate(members)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BackupError(f"{path} is damaged: header: {where}: {first['msg']}") from None
    if said != header.encoded():
        raise BackupError(f"{path} is damaged: its header is not as it was written; use another backup")
    return header


def _digest(file: IO[bytes], header: Header) -> str:
    digest = header.digest()
    file.seek(HEADER_BYTES)
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _rows(path: Path, header: Header, body: Iterable[bytes]) -> Iterator[Any]:
    rows = 0
    for line in body:
        said = json.loads(line)
        if isinstance(said, dict) and "rows" in said:
            if said["rows"] == rows == header.rows:
                return
            break
        rows += isinstance(said, list)
        yield said
    raise BackupError(
        f"{path} is damaged: it does not contain the {header.rows} rows that its header names; use another backup"
    )


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
