# SPDX-License-Identifier: Apache-2.0
"""The command runs inside the test's process, against the fake API, without this machine's settings."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.fake_api import TOKEN, FakeApi
from tests.unit.cli.fake_content import MADE
from vgpumgr.cli.main import main
from vgpumgr.cli.session import Session

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Result:
    """The exit status and output of a command."""

    status: int
    out: str
    err: str


@dataclass
class Cli:
    """Runs commands. `slept_s` is also the clock: only sleeping makes time pass."""

    api: FakeApi
    root: Path
    capture: Any
    slept_s: list[float] = field(default_factory=list)
    session: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=lambda: {"VGPUMGR_TOKEN": TOKEN})

    def __call__(self, *arguments: str) -> Result:
        self.capture.readouterr()
        members: dict[str, Any] = {
            "env": self.env,
            "transport": self.api.transport,
            "sleep": self.slept_s.append,
            "clock": lambda: sum(self.slept_s),
            "operator_token": self.root / "etc/vgpumgr/operator-token",
            "root": self.root,
            "virsh": lambda: None,
            "now": lambda: MADE + timedelta(seconds=40),
        }
        status = main(arguments, Session(**(members | self.session)))
        captured = self.capture.readouterr()
        return Result(int(status), captured.out, captured.err)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def cli(api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(api, tmp_path, capsys)


def transcripts(path: Path) -> dict[str, str]:
    """Return the transcripts of a file of golden/, by the line with the command."""
    parts = re.split(r"^(?=\$ vgpumgr )", path.read_text() if path.exists() else "", flags=re.MULTILINE)
    return {part.partition("\n")[0]: part for part in parts if part}


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare with a transcript in golden/. VGPUMGR_WRITE_GOLDEN=1 writes the transcript instead; the author must then
    check it.
    """

    def compare(name: str, text: str) -> None:
        command = text.partition("\n")[0]
        kept = transcripts(GOLDEN / name)
        if os.environ.get("VGPUMGR_WRITE_GOLDEN"):
            kept[command] = text
            (GOLDEN / name).write_text("".join(kept.values()))
        assert text == kept.get(command)

    return compare
