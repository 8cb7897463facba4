# SPDX-License-Identifier: Apache-2.0
"""Which slices are ours: one file each below /var/lib/vgpumgr/slices, written before the device is created.

The existence of the file is what counts: a slice without one is never changed or removed. Its content says what the
slice was created for, and may be lost. Callers serialise changes of one slice.
"""

import json
import math
import uuid as uuids
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from vgpumgr_agent.files import remove_durably, write_durably
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.refused import Refused

DIRECTORY = Path("/var/lib/vgpumgr/slices")
_SUFFIX = ".json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A slice of ours. Every member except `uuid` may be "": the content was lost, or unknown at adoption.

    `*_max*`: limits that the slice requests for its executor, 0 for none.
    """

    uuid: str
    gpu: str = ""
    mdev_type: str = ""
    tenant: str = ""
    vm_uuid: str = ""
    memory_max_bytes: int = 0
    tasks_max: int = 0
    cpu_max_permille: int = 0


@dataclass(frozen=True)
class Records:
    """The records in one directory, which only root may read."""

    directory: Path = DIRECTORY

    def make_directory(self) -> None:
        """Create the directory. Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, uuid: str) -> Record | None:
        """Return a slice's record, or None if it is not ours."""
        try:
            text = self._path(uuid).read_text()
        except FileNotFoundError:
            return None
        return _parse(uuid, text)

    def saved_s(self, uuid: str) -> float:
        """Return when a record was written, by the wall clock, or infinity if there is no record."""
        try:
            return self._path(uuid).stat().st_mtime
        except FileNotFoundError:
            return math.inf

    def all(self) -> list[Record]:
        """Return all records."""
        found = []
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            try:
                uuid = str(uuids.UUID(path.name.removesuffix(_SUFFIX)))
            except ValueError:
                continue
            record = self.get(uuid)
            if record is not None:
                found.append(record)
        return found

    def save(self, record: Record) -> None:
        """Write a record. It is on disk when this returns. Raises Refused."""
        if self.get(record.uuid) == record:
            return
        with self._writing():
            write_durably(self._path(record.uuid), json.dumps({"v": 1, **asdict(record)}) + "\n")

    def delete(self, uuid: str) -> None:
        """Delete a slice's record, if there is one. Raises Refused."""
        with self._writing():
            remove_durably(self._path(uuid))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Refused(
                Code.HOST_UNWRITABLE,
                f"this host cannot write {self.directory}: {error.strerror or error}; free space, or mend the disk",
            ) from error

    def _path(self, uuid: str) -> Path:
        return self.directory / f"{uuids.UUID(uuid)}{_SUFFIX}"


def _parse(uuid: str, text: str) -> Record:
    try:
        content = json.loads(text)
    except ValueError:
        content = {}
    if not isinstance(content, dict):
        content = {}

    def member(name: str) -> str:
        value = content.get(name, "")
        return value if isinstance(value, str) else ""

    def number(name: str) -> int:
        value = content.get(name, 0)
        return value if type(value) is int and value >= 0 else 0

    return Record(
        uuid=uuid,
        gpu=member("gpu"),
        mdev_type=member("mdev_type"),
        tenant=member("tenant"),
        vm_uuid=member("vm_uuid"),
        memory_max_bytes=number("memory_max_bytes"),
        tasks_max=number("tasks_max"),
        cpu_max_permille=number("cpu_max_permille"),
    )
