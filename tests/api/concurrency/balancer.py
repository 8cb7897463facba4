# SPDX-License-Identifier: Apache-2.0
"""One address for several replicas, as a balancer of TCP connections gives it."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.api.concurrency.deployment import Deployment


class Balancer:
    """Each connection goes to the first replica, in turn, that takes it; to a client that finds none it is closed.

    `address` is its own. What was given to a replica that dies is lost with it.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._turn = 0

    @contextlib.contextmanager
    def running(self) -> "Iterator[Balancer]":
        """Takes connections until the block ends."""
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
    """Until either end is gone; then both are."""
    with contextlib.suppress(OSError):
        source.settimeout(None)
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
