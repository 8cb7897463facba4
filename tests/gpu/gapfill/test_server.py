# SPDX-License-Identifier: Apache-2.0
"""The gate and its clients as processes: effects of a death, a stop or a lie on the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.gpu.gapfill.channel import RING, State
from tests.gpu.gapfill.client import GateGoneError
from tests.gpu.gapfill.gate import Role
from tests.gpu.gapfill.start import Link, start_gate
from vgpumgr.sched.core import ItemInfo

PATIENCE_S = 30
ITEM = ItemInfo(kernel_id=1)
HOLDS_A_GRANT = """
from tests.gpu.gapfill.client import GateClient
from vgpumgr.sched.core import ItemInfo
GateClient.inherited().ask(ItemInfo(kernel_id=1))
print("granted", flush=True)
input()
"""

Start = Callable[..., tuple["subprocess.Popen[str]", list[Link]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a gate. The gate and all links are removed afterwards."""
    gates = []

    def begin(*names: str, options: tuple[str, ...] = ()) -> tuple[subprocess.Popen[str], list[Link]]:
        roles = [(name, Role.FIRST if name == "first" else Role.OTHER) for name in names]
        gate, links = start_gate(roles, *options)
        gates.append(gate)
        return gate, links

    yield begin
    for gate in gates:
        gate.kill()
        gate.communicate()


def said(gate: subprocess.Popen[str]) -> str:
    """Return all output of the gate. The gate ends when its clients are gone."""
    out, _ = gate.communicate(timeout=PATIENCE_S)
    assert gate.returncode == 0
    return out


def asking(link: Link) -> tuple[threading.Thread, list[str]]:
    """Ask in a thread. The list receives the outcome."""
    outcome: list[str] = []
    client = link.client()

    def ask() -> None:
        try:
            client.ask(ITEM)
            outcome.append("granted")
        except GateGoneError:
            outcome.append("gone")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, outcome


def waited(thread: threading.Thread, outcome: list[str]) -> list[str]:
    thread.join(PATIENCE_S)
    return outcome


def test_items_are_granted_in_turn_and_the_gate_ends_with_its_clients(start: Start) -> None:
    gate, links = start("one", "two")
    one, two = (link.client() for link in links)
    for _ in range(200):
        one.ask(ITEM)
        one.done()
        two.ask(ITEM)
        two.done()
    for link in links:
        link.close()
    assert said(gate).count("gone") == 2


def test_a_first_client_never_waits_for_the_gate(start: Start) -> None:
    """It does not wait for a stopped gate either. Items that do not fit into the ring are launched unnoticed."""
    gate, links = start("first")
    first = links[0].client()
    gate.send_signal(signal.SIGSTOP)
    os.waitpid(gate.pid, os.WUNTRACED)
    told = [first.ask(ITEM) for _ in range(2 * RING)]
    assert told.count(False) == first.unnoticed >= RING - 1
    gate.send_signal(signal.SIGCONT)
    links[0].close()
    assert "evicted" not in said(gate)


def test_a_client_killed_with_a_grant_holds_up_nobody(start: Start) -> None:
    gate, (doomed, other) = start("doomed", "other", options=("--overdue-ms", "60000"))
    process = doomed.start([sys.executable, "-c", HOLDS_A_GRANT], stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "granted\n"
    thread, outcome = asking(other)
    process.kill()
    process.communicate()
    assert waited(thread, outcome) == ["granted"]
    other.close()
    assert said(gate).index("doomed: gone") >= 0


def test_a_grant_that_is_never_used_is_withdrawn_in_the_end(start: Start) -> None:
    gate, (silent, other) = start("silent", "other", options=("--overdue-ms", "20"))
    silent.client().ask(ITEM)
    assert waited(*asking(other)) == ["granted"]
    silent.close()
    other.close()
    assert "overdue" in said(gate)


def test_when_the_gate_dies_others_stop_and_the_first_goes_on(start: Start) -> None:
    gate, (first, one, two) = start("first", "one", "two")
    one.client().ask(ITEM)
    thread, outcome = asking(two)
    gate.kill()
    assert waited(thread, outcome) == ["gone"]
    alone = first.client()
    for _ in range(3 * RING):
        alone.ask(ITEM)
    assert alone.unnoticed >= RING
    assert not alone.is_alive()


def test_a_client_that_lies_is_evicted_and_stops_while_the_others_go_on(start: Start) -> None:
    gate, (liar, other) = start("liar", "other")
    client = liar.client()
    client.end.done(5)
    thread, outcome = asking(liar)
    assert waited(thread, outcome) == ["gone"]
    assert client.end.state == State.EVICTED
    assert waited(*asking(other)) == ["granted"]
    other.close()
    assert "liar: evicted: done goes from 0 to 5 of" in said(gate)


def test_a_client_that_claims_what_it_was_not_granted_is_evicted(start: Start) -> None:
    gate, (holder, liar) = start("holder", "liar")
    holder.client().ask(ITEM)
    client = liar.client()
    client.end.ask(ITEM)
    client.end.done(1)
    thread, outcome = asking(liar)
    assert waited(thread, outcome) == ["gone"]
    holder.close()
    assert "not granted" in said(gate)


def test_a_client_that_floods_is_evicted(start: Start) -> None:
    gate, (flood,) = start("flood")
    client = flood.client()
    for _ in range(RING):
        client.end.ask(ITEM)
    assert "more than it may have under way" in said(gate)
    assert client.end.state == State.EVICTED


def test_nobody_is_let_in_between_the_kernels_of_a_request(start: Start) -> None:
    """In real processes, the other's grant comes after the first's last item, whatever load the machine has."""
    gate, (leading, following) = start("first", "other")
    first = leading.client()
    first.ask(ItemInfo(kernel_id=1, more=True))
    first.ask(ItemInfo(kernel_id=1))
    while first.end.asked > first.end.words[8]:  # word 8: asks that the gate has taken
        pass
    thread, outcome = asking(following)
    first.done()
    thread.join(0.2)
    assert outcome == []
    first.done()
    assert waited(thread, outcome) == ["granted"]
    leading.close()
    following.close()
    said(gate)
