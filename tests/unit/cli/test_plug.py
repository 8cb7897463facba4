# SPDX-License-Identifier: Apache-2.0
"""`attach` and `detach` against a libvirt that behaves and fails like the real one, and an agent's socket."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import OTHER_VM, SLICES, VM, slice_of
from tests.unit.cli.fake_libvirt import FakeDomain, FakeLibvirt
from vgpumgr.cli.agent_socket import AgentSocket
from vgpumgr.errors import AgentUnreachableError

LIVE, CONFIG = 1, 2
MINE = str(SLICES[0])
UNBOUND = str(SLICES[1])
NEIGHBOUR = "12345678-0000-4000-8000-000000000000"


class FakeAgent:
    """Listens, records requests, and sends the answers that the test sets."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True)
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, bytes] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def operations(self) -> list[str]:
        return [request["op"] for request in self.asked]

    def refuse(self, operation: str, code: str, reason: str) -> None:
        self.answers[operation] = json.dumps({"ok": False, "code": code, "reason": reason}).encode() + b"\n"

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                request = json.loads(connection.makefile("rb").readline())
                self.asked.append(request)
                connection.sendall(self.answers.get(request["op"], b'{"ok": true}\n'))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    made = FakeAgent(tmp_path / "run/vgpumgr/hook.sock")
    yield made
    made.close()


@pytest.fixture
def domain(cli: Cli) -> FakeDomain:
    made = FakeDomain("web-1", str(VM))
    cli.session["libvirt"] = FakeLibvirt(made)
    return made


def state(domain: FakeDomain) -> tuple[Any, Any]:
    return json.loads(json.dumps(domain.devices)), dict(domain.metadata)


def ids(domain: FakeDomain, side: int) -> str:
    return domain.metadata[side] or ""


# ---- attach


def test_a_stopped_domain_gets_the_device_and_our_metadata_in_its_definition(cli: Cli, domain: FakeDomain) -> None:
    result = cli("attach", MINE, "--domain", "web-1")
    assert (result.status, result.err) == (0, "")
    assert result.out == f"slice {MINE} attached, domain web-1: definition\n"
    assert domain.devices == {LIVE: [], CONFIG: [MINE]}
    assert ids(domain, CONFIG) == (
        '<vgpumgr:slices xmlns:vgpumgr="https://vgpumgr.dev/xmlns/domain/1">'
        f'<vgpumgr:slice id="{MINE}" /></vgpumgr:slices>'
    )
    assert cli.session["libvirt"].connections[0].closed
    assert cli.session["libvirt"].handler is not None  # otherwise libvirt prints errors itself


def test_a_running_domain_is_plugged_after_the_agent_has_permitted_it(
    cli: Cli, domain: FakeDomain, agent: FakeAgent
) -> None:
    domain.active = True
    result = cli("attach", MINE, "--domain", str(VM).upper(), "-o", "json")
    assert result.status == 0
    assert json.loads(result.out) == {
        "slice": MINE,
        "domain": "web-1",
        "state": "attached",
        "changed": ["definition", "running VM"],
    }
    assert domain.devices == {LIVE: [MINE], CONFIG: [MINE]}
    assert MINE in ids(domain, LIVE)
    assert agent.asked == [
        {
            "v": 1,
            "op": "hotplug",
            "domain": "web-1",
            "vm_uuid": str(VM),
            "devices": [MINE],
            "metadata": [MINE],
            "reason": "-",
        }
    ]


def test_attaching_again_changes_nothing_and_asks_nobody(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    domain.active = True
    cli("attach", MINE, "--domain", "web-1")
    before, calls, asked = state(domain), len(domain.calls), len(agent.asked)
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.out == f"slice {MINE} was already attached, domain web-1\n"
    assert (state(domain), len(domain.calls), len(agent.asked)) == (before, calls, asked)


def test_other_slices_stay_in_the_metadata(cli: Cli, domain: FakeDomain) -> None:
    cli("attach", MINE, "--domain", "web-1")
    cli("attach", UNBOUND, "--domain", "web-1")
    assert domain.devices[CONFIG] == [MINE, UNBOUND]
    assert ids(domain, CONFIG).index(MINE) < ids(domain, CONFIG).index(UNBOUND)
    cli("detach", MINE, "--domain", "web-1")
    assert MINE not in ids(domain, CONFIG)
    assert UNBOUND in ids(domain, CONFIG)
    assert domain.devices[CONFIG] == [UNBOUND]


def test_a_domain_without_a_definition_is_plugged_only(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    domain.active, domain.persistent = True, False
    assert cli("attach", MINE, "--domain", "web-1").status == 0
    assert domain.devices == {LIVE: [MINE], CONFIG: []}


def test_a_claim_for_another_vm_is_refused_and_nothing_touched(cli: Cli, domain: FakeDomain) -> None:
    domain.domain_uuid = str(OTHER_VM)
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 4
    assert result.err.startswith(f"vgpumgr: claim.mismatch: slice {MINE} is for VM {VM}, and domain web-1 is VM")
    assert domain.calls == []


def test_a_slice_that_is_being_given_back_is_refused(cli: Cli, domain: FakeDomain) -> None:
    domain.domain_uuid = str(OTHER_VM)
    result = cli("attach", str(SLICES[2]), "--domain", "web-1")
    assert result.status == 4
    assert result.err.startswith(f"vgpumgr: claim.mismatch: slice {SLICES[2]} is being released")
    assert domain.calls == []


@pytest.mark.parametrize("how_far", ["prepared", "attached", "failed", "orphaned"])
def test_a_slice_that_was_not_given_up_is_attached_however_far_it_came(
    cli: Cli, domain: FakeDomain, how_far: str
) -> None:
    cli.api.lists["slices"] = [slice_of(UUID(MINE), "blue", vm=VM, state=how_far)]
    assert cli("attach", MINE, "--domain", "web-1").status == 0
    assert domain.devices[CONFIG] == [MINE]


def test_an_unknown_slice_and_an_unknown_domain_are_not_found(cli: Cli, domain: FakeDomain) -> None:
    assert cli("attach", NEIGHBOUR, "--domain", "web-1").status == 3
    result = cli("attach", MINE, "--domain", "web-2")
    assert (result.status, result.err.split(": ")[1]) == (3, "domain.unknown")
    assert cli("attach", MINE, "--domain", str(OTHER_VM)).status == 3


@pytest.mark.parametrize(
    ("method", "side"),
    [("attachDeviceFlags", CONFIG), ("setMetadata", CONFIG), ("attachDeviceFlags", LIVE), ("setMetadata", LIVE)],
)
def test_a_step_that_libvirt_refuses_is_undone_with_all_before_it(
    cli: Cli, domain: FakeDomain, agent: FakeAgent, method: str, side: int
) -> None:
    domain.active = True
    domain.devices[LIVE].append(NEIGHBOUR)
    before = state(domain)
    domain.failing.add((method, side))
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 1
    assert result.err == f"vgpumgr: libvirt.failed: {method}: internal error: {method} was refused\n"
    domain.XMLDesc(0)  # the guest releases the device
    assert state(domain) == before
    assert agent.operations == (["hotplug", "unplug"] if side == LIVE else [])


def test_an_agent_that_refuses_leaves_the_definition_as_it_was(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    domain.active = True
    before = state(domain)
    agent.refuse("hotplug", "claim.unknown", "this host has no claim for it; look with `vgpumgr get slices`")
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 5
    assert result.err == ("vgpumgr: claim.unknown: this host has no claim for it; look with `vgpumgr get slices`\n")
    assert state(domain) == before
    assert "attachDeviceFlags live" not in domain.calls


def test_without_an_agent_a_running_domain_stays_as_it_was(cli: Cli, domain: FakeDomain) -> None:
    domain.active = True
    before = state(domain)
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 1
    assert "agent.unreachable" in result.err
    assert "check that vgpumgr-agent runs" in result.err
    assert state(domain) == before


def test_what_cannot_be_undone_is_said(cli: Cli, domain: FakeDomain) -> None:
    domain.failing |= {("setMetadata", CONFIG), ("detachDeviceFlags", CONFIG)}
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 1
    assert "could not undo: the device of the definition (detachDeviceFlags: internal error" in result.err


def test_ctrl_c_undoes_too(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    domain.active = True
    before = state(domain)

    def interrupt() -> None:
        if "attachDeviceFlags live" in domain.calls and "setMetadata live" not in domain.calls:
            domain.on_xml = lambda: None
            raise KeyboardInterrupt

    domain.on_xml = interrupt
    assert cli("attach", MINE, "--domain", "web-1").status == 130
    domain.XMLDesc(0)
    assert state(domain) == before
    assert agent.operations == ["hotplug", "unplug"]


def test_libvirt_missing_or_silent_is_said(cli: Cli, domain: FakeDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.session["libvirt"].reachable = False
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 1
    assert "libvirt.failed: cannot connect to qemu:///system" in result.err
    cli.session["libvirt"] = None
    monkeypatch.setitem(__import__("sys").modules, "libvirt", None)
    result = cli("attach", MINE, "--domain", "web-1")
    assert result.status == 1
    assert "libvirt-python is missing" in result.err


# ---- detach


def attached(cli: Cli, domain: FakeDomain, *, active: bool) -> None:
    domain.active = active
    assert cli("attach", MINE, "--domain", "web-1").status == 0
    domain.calls.clear()
    cli.api.requests.clear()


def test_detach_takes_device_and_metadata_from_both_and_then_tells_the_agent(
    cli: Cli, domain: FakeDomain, agent: FakeAgent
) -> None:
    attached(cli, domain, active=True)
    domain.slow_polls = 3
    result = cli("detach", MINE, "--domain", "web-1")
    assert result.out == f"slice {MINE} detached, domain web-1: running VM and definition\n"
    assert domain.devices == {LIVE: [], CONFIG: []}
    assert domain.metadata == {LIVE: None, CONFIG: None}
    assert agent.operations == ["hotplug", "unplug"]
    assert len(cli.slept_s) == 3
    assert cli.api.requests == []


def test_detach_works_without_token_and_api(cli: Cli, domain: FakeDomain) -> None:
    attached(cli, domain, active=False)
    cli.env = {}
    assert cli("detach", MINE, "--domain", "web-1").status == 0
    assert domain.devices[CONFIG] == []


def test_a_guest_that_does_not_let_go_keeps_everything(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    attached(cli, domain, active=True)
    before = state(domain)
    domain.slow_polls = None
    result = cli("detach", MINE, "--domain", "web-1", "--wait", "5")
    assert result.status == 1
    assert "wait.ended: the guest of domain web-1 still uses slice" in result.err
    assert state(domain) == before
    assert agent.operations == ["hotplug"]


def test_a_detach_that_failed_at_the_agent_is_finished_by_the_next(
    cli: Cli, domain: FakeDomain, agent: FakeAgent
) -> None:
    attached(cli, domain, active=True)
    agent.refuse("unplug", "agent.busy", "too many requests; try again")
    assert cli("detach", MINE, "--domain", "web-1").status == 5
    agent.answers.clear()
    result = cli("detach", MINE, "--domain", "web-1")
    assert result.out == f"slice {MINE} was already detached, domain web-1\n"
    assert agent.operations == ["hotplug", "unplug", "unplug"]


def test_a_vm_that_stops_while_it_is_waited_for_has_let_go(cli: Cli, domain: FakeDomain, agent: FakeAgent) -> None:
    attached(cli, domain, active=True)
    domain.slow_polls = None

    def stop() -> None:
        if cli.slept_s:
            domain.active = False
            domain.devices[LIVE].clear()

    domain.on_xml = stop
    assert cli("detach", MINE, "--domain", "web-1").status == 0
    assert domain.devices[CONFIG] == []
    assert MINE not in ids(domain, CONFIG)
    assert agent.operations == ["hotplug"]


# ---- the agent's socket


@pytest.mark.parametrize(
    "answer", [b"", b"no json\n", b"[1]\n", b"[" * 100_000 + b"\n"], ids=["nothing", "words", "list", "deep"]
)
def test_an_answer_that_is_none_is_said(tmp_path: Path, agent: FakeAgent, answer: bytes) -> None:
    agent.answers["unplug"] = answer
    asked = AgentSocket(path=tmp_path / "run/vgpumgr/hook.sock")
    with pytest.raises(AgentUnreachableError, match="the answer is not the agent's"):
        asked.unplug(domain="web-1", vm_uuid=VM, slice_id=SLICES[0])


def test_an_agent_that_does_not_answer_is_left(tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(AgentUnreachableError, match=r"no answer within 0\.1 s"):
            AgentSocket(path=path, limit_s=0.1).unplug(domain="web-1", vm_uuid=VM, slice_id=SLICES[0])
