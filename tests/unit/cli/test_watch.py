# SPDX-License-Identifier: Apache-2.0
"""`host watch` with a fake kernel."""

import json
from collections.abc import Sequence

import pytest

from tests.unit.cli.conftest import Cli
from vgpumgr.control import events, netlink
from vgpumgr.control.model import Event, EventKind, Snapshot
from vgpumgr.errors import ControlUnavailableError

GPU = "0000:00:10.0"
SEEN = (
    Snapshot(sequence=4, gpus=(), tenants=(), slices=()),
    Event(kind=EventKind.CREATED, sequence=5, time_ns=1, count=1, gpu=GPU, slice="u"),
    Event(kind=EventKind.FAULT, sequence=6, time_ns=2, count=3, gpu=GPU, tenant="blue", slice="u", error=7),
    Event(kind=EventKind.REVOKED, sequence=7, time_ns=3, count=1, gpu=GPU, slice="u", pid=9, comm="qemu\x1b[1m"),
)


class Given:
    """Replaces Control and Watch."""

    def __init__(self, *_: object) -> None:
        self.seen: list[Event | Snapshot] = list(SEEN)

    def __enter__(self) -> "Given":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout_s: float | None) -> Event | Snapshot | None:
        assert timeout_s == 2
        return self.seen.pop(0) if self.seen else None


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "Control", Given)
    monkeypatch.setattr(events, "Watch", Given)


def lines(cli: Cli, *arguments: str) -> Sequence[str]:
    result = cli("host", "watch", "--seconds", "2", *arguments)
    assert result.status == 0
    return result.out.splitlines()


def test_each_event_is_a_line_without_control_characters(cli: Cli) -> None:
    assert lines(cli) == [
        "4 all: 0 GPUs, 0 tenants, 0 slices",
        f"5 created: {GPU} slice u",
        f"6 fault: {GPU} tenant blue slice u 3 times error 7 at item 0",
        f"7 revoked: {GPU} slice u from qemu\\x1b[1m, pid 9",
    ]


def test_json_is_one_object_a_line(cli: Cli) -> None:
    found = [json.loads(line) for line in lines(cli, "-o", "json")]
    assert [one["sequence"] for one in found] == [4, 5, 6, 7]
    assert (found[1]["kind"], found[3]["pid"]) == ("created", 9)


def test_without_the_module_it_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ControlUnavailableError("no netlink family vgpumgr: vgpumgr.ko is not loaded")

    monkeypatch.setattr(netlink, "Control", refuse)
    result = cli("host", "watch")
    assert result.status == 1
    assert "not loaded" in result.err
