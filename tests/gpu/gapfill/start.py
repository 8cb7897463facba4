# SPDX-License-Identifier: Apache-2.0
"""Starts the gate and its clients as processes, with their shared memory and sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.gapfill import channel
from tests.gpu.gapfill.client import VARIABLE, GateClient

if TYPE_CHECKING:
    from tests.gpu.gapfill.gate import Role

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Link:
    """What one client needs: its end of a socket, and its channel."""

    name: str
    role: Role
    channel: int
    socket: socket.socket

    def client(self) -> GateClient:
        """Return a client in this process."""
        return GateClient(self.role, self.channel, self.socket)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: object
    ) -> subprocess.Popen[str]:
        """Start a client's process with additional `environment`. This process closes the client's descriptors."""
        descriptors = (self.channel, self.socket.fileno())
        environment = {**os.environ, **(environment or {}), VARIABLE: f"{self.role}:{descriptors[0]}:{descriptors[1]}"}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=descriptors, stdout=subprocess.PIPE, text=True, **options
        )  # type: ignore[call-overload]
        self.close()
        return process

    def close(self) -> None:
        self.socket.close()
        os.close(self.channel)


def start_gate(clients: Sequence[tuple[str, Role]], *options: str) -> tuple[subprocess.Popen[str], list[Link]]:
    """Start the gate. Returns when it serves, with the links of its clients."""
    links, words, theirs = [], [], []
    for name, role in clients:
        ours, gates = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = channel.make()
        links.append(Link(name, role, memory, ours))
        words.append(f"{name}:{role}:{memory}:{gates.fileno()}")
        theirs.append(gates)
    gate = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.gapfill.server", *options, *words],
        cwd=ROOT,
        pass_fds=[*(link.channel for link in links), *(one.fileno() for one in theirs)],
        stdout=subprocess.PIPE,
        text=True,
    )
    for one in theirs:
        one.close()
    assert gate.stdout is not None
    if "serving" not in gate.stdout.readline():
        raise RuntimeError(f"the gate did not start: status {gate.wait()}")
    return gate, links
