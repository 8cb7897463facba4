# SPDX-License-Identifier: Apache-2.0
"""What every command receives: the API's client, created on first use, and functions that print."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vgpumgr.cli.failures import Status, printable
from vgpumgr.cli.settings import OPERATOR_TOKEN, Options, settings
from vgpumgr.errors import OutputError

if TYPE_CHECKING:
    import httpx2
    from pydantic import BaseModel

    from vgpumgr.client import Client
    from vgpumgr.gpu.duel import Rig


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    NAME = "name"


class JsonOutput(StrEnum):
    """How to print results that have no names."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="table for people, json for programs, name for scripts")
]
JsonOutputOption = Annotated[JsonOutput, typer.Option("--output", "-o", help="table for people, json for programs")]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Session:
    """What a command works with. Tests replace the members from `transport` on.

    `root`: where the agent's sockets are looked for. `rig`: the device that `host probe-gpu` measures, None for the
    device that the options select. `takes`: the command's options."""

    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    options: Options = field(default_factory=Options)
    output: str = Output.TABLE
    transport: "httpx2.BaseTransport | None" = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    operator_token: Path = OPERATOR_TOKEN
    root: Path = Path("/")
    libvirt: Any = None
    virsh: Callable[[], str | None] | None = None
    now: Callable[[], datetime] = utc_now
    rig: "Rig | None" = None
    takes: frozenset[str] = frozenset()

    @cached_property
    def client(self) -> "Client":
        """The API's client. SettingsError."""
        from vgpumgr.client import Client

        found = settings(self.options, self.env, operator_token=self.operator_token)
        return Client(found.url, found.token, ca_file=found.ca_file, transport=self.transport, sleep=self.sleep)

    def print(self, text: str) -> None:
        """Write whole lines; see `write`."""
        self.write(text if text.endswith("\n") or not text else text + "\n")

    def write(self, text: str) -> None:
        """Write to standard output without buffering. OutputError. If the reader is gone, the program ends quietly."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget(sys.stdout)
            raise typer.Exit(Status.BROKEN_PIPE) from None
        except (OSError, UnicodeEncodeError, AttributeError) as error:
            _forget(sys.stdout)
            if isinstance(error, OSError):
                reason = error.strerror
            else:  # stdout is None if it was closed when the interpreter started
                reason = "closed" if isinstance(error, AttributeError) else "not in this terminal's character set"
            raise OutputError(f"standard output: {reason}; the command itself succeeded") from None

    def note(self, text: str) -> None:
        """Print a message for people that is not part of the result."""
        if self.output != Output.JSON:
            complain(printable(text))

    def print_json(self, content: object) -> None:
        self.print(json.dumps(content, indent=2))


def begin(context: typer.Context, output: str) -> Session:
    """Return the session of a command that prints as `output`."""
    session = context.obj
    if not isinstance(session, Session):  # the application was called without `run`
        session = context.obj = Session()
    session.output = str(output)
    session.takes = frozenset(option for parameter in context.command.params for option in parameter.opts)
    return session


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines with aligned columns. Cells are made printable."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(header), *cells]) for column in range(len(header))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in [list(header), *cells]
    )


def dumped(model: "BaseModel") -> Any:
    """Return a model as values that JSON can represent."""
    return model.model_dump(mode="json")


def complain(text: str) -> None:
    """Write a line to standard error. If that fails, only the exit status reports the error."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        _forget(sys.stderr)


def _forget(stream: TextIO) -> None:
    """Discard a stream's buffer. Otherwise the interpreter flushes it at exit, and reports the error again."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(devnull, stream.fileno())
    os.close(devnull)
