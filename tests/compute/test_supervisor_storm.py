# SPDX-License-Identifier: Apache-2.0
"""A supervisor in a storm of requests, deaths and hostile children: each request is answered, and nothing is left."""

import contextlib
import os
import random
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    CALL,
    CRASH,
    DONE,
    EXITED,
    FORK,
    FREEZE,
    HANG,
    HOSTILE_COMPILE,
    KILL,
    SPIN,
    THAW,
    Child,
    Slice,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
)
from tests.compute.gates import GATES, has_gate

SENDTO, SUPERVISOR = 44, 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    return make_hostile_child(tmp_path_factory.mktemp("hostile"))


class Storm:
    """Sends requests in random order, and receives answers as they come."""

    def __init__(self, slice_: Slice, seed: int) -> None:
        self.slice = slice_
        self.chance = random.Random(seed)
        self.children: list[Child] = []
        # pidfds, because a process id may belong to another process by now.
        self.processes: list[int] = []
        self.unanswered: set[int] = set()

    def blow(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice([self.start, self.end, self.freeze, self.thaw, self.thaw, self.misbehave, self.murder])()
            if len(self.unanswered) > 40:
                while self.unanswered:
                    self.take()
        self.unanswered.add(self.slice.send(THAW))
        for child in self.children:
            self.unanswered.add(self.slice.send(KILL, child=child.number))
        while self.unanswered or any(child.number not in self.slice.exited for child in self.children):
            self.take()

    def take(self) -> None:
        message = self.slice.receive()
        if message.op == EXITED:
            assert message.child not in self.slice.exited
            self.slice.exited[message.child] = message
        else:
            assert message.sequence in self.unanswered
            self.unanswered.remove(message.sequence)

    def start(self) -> None:
        if sum(child.number not in self.slice.exited for child in self.children) >= 6:
            return
        while self.unanswered:
            self.take()
        child, message = self.slice.try_start()
        assert message.op == DONE
        self.children.append(child)
        with contextlib.suppress(ProcessLookupError):
            self.processes.append(os.pidfd_open(self.slice.pid_of(child.number)))

    def end(self) -> None:
        number = self.chance.choice(self.children).number if self.children else 99
        self.unanswered.add(self.slice.send(KILL, child=number))

    def freeze(self) -> None:
        self.unanswered.add(self.slice.send(FREEZE))

    def thaw(self) -> None:
        self.unanswered.add(self.slice.send(THAW))

    def murder(self) -> None:
        if self.processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.chance.choice(self.processes), signal.SIGKILL)

    def misbehave(self) -> None:
        if not self.children:
            return
        window = self.chance.choice(self.children).window
        if window.tail > 1 << 19:
            return
        datagram = os.urandom(self.chance.choice([1, 224, 300]))
        send = (SUPERVISOR, datagram, len(datagram), 0, 0, 0)
        offences: list[Callable[[], object]] = [
            lambda: tell(window, SPIN),
            lambda: tell(window, HANG),
            lambda: tell(window, CRASH),
            lambda: tell(window, FORK),
            lambda: tell(window, HOSTILE_COMPILE, text=self.chance.choice([b"chello", b"s", b"f", b"x", b"?"])),
            lambda: tell(window, CALL, number=SENDTO, times=self.chance.choice([1, 10**6]), arguments=send),
            lambda: window.publish(self.chance.randrange(2**64)),
        ]
        self.chance.choice(offences)()


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("policy", ["best", "none"])
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 60), pytest.param(2, 1500, marks=pytest.mark.long), pytest.param(3, 1500, marks=pytest.mark.long)],
)
def test_a_storm_passes(program: Path, tmp_path: Path, gate: str, policy: str, seed: int, steps: int) -> None:
    if not has_gate(gate):
        pytest.skip(f"this machine lets nobody use {gate}")
    options = ("--backend", "hostile", "--gate", gate, "--sandbox", policy, "--compiler-limit-ms", "300")
    with run_slice(tmp_path, *options, child=program) as slice_:
        storm = Storm(slice_, seed)
        storm.blow(steps)
        # Each process has ended, because its pidfd is readable.
        assert len(select.select(storm.processes, [], [], 0)[0]) == len(storm.processes)
        for process in storm.processes:
            os.close(process)
        wait_for(lambda: len(slice_.processes()) == 1, "the end of all but the janitor")
        calm = slice_.start()
        assert tell(calm.window, CALL, number=39)
        calm.window.reply()
        supervisor = slice_.process.pid
        assert len(list(Path(f"/proc/{supervisor}/fd").iterdir())) < 32
    assert slice_.process.returncode == 0
    assert not list(Path("/tmp").glob(f"vgpu-{supervisor}-*"))
