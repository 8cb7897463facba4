# SPDX-License-Identifier: Apache-2.0
"""One address for several replicas, like a TCP load balancer."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.api.concurrency.deployment import Deployment


class Balancer:
    """Hands each connection to the next replica in turn that accepts it; closes the connection if no replica does.

    `address`: the balancer's own address. A connection dies with its replica.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._turn = 0

    @contextlib.contextmanager
    def running(self) -> "Iterator[Balancer]":
        """Accepts connections until the block ends."""
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._chosen()
            if server is None:
                client.close()
                continue
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    def _chosen(self) -> socket.socket | None:
        self._turn += 1
        replicas = self._deployment.replicas
        for number in range(len(replicas)):
            address = replicas[(self._turn + number) % len(replicas)].address
            if address is not None:
                with contextlib.suppress(OSError):
                    return socket.create_connection(address, timeout=10)
        return None


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until either end closes, then closes both ends."""
    with contextlib.suppress(OSError):
        source.settimeout(None)
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
