# SPDX-License-Identifier: Apache-2.0
"""What idle connections and watchers that do not read cost a served API, over TLS:

build/venv/bin/python -m tests.bench.api.crowd --clients 300
"""

import argparse
import contextlib
import json
import re
import socket
import ssl
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.records import Event

from tests.api.http import process
from tests.api.http.process import Server, serving
from tests.api.http.tls import TLS, make_certificate

EVENTS, DETAIL_BYTES = 3000, 1000
SETTLE_S = 10


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=300)
    clients: int = parser.parse_args().clients
    process.START_S = 600  # other load on the machine affects times, not memory
    patient: dict[str, str | int] = {"connections.take_s": 3600, "connections.head_s": 3600}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as open_until_then:
        directory = Path(name)
        make_certificate(directory)
        server = open_until_then.enter_context(serving(directory, environment={}, **TLS, **patient))
        tell(directory)
        tls = ssl.create_default_context(cafile=directory / "crt.pem")
        watch = f"GET /v1/events/watch?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        [first] = crowd(server, tls, 1, watch, open_until_then)  # allocates what the first one needs once for all
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        time.sleep(SETTLE_S)
        alone = resident_kib(server)
        crowd(server, tls, clients, "", open_until_then)
        time.sleep(SETTLE_S)
        idle = resident_kib(server)
        for each in crowd(server, tls, clients, watch, open_until_then):
            assert each.recv(100).startswith(b"HTTP/1.1 200")
        time.sleep(SETTLE_S)
        watched = resident_kib(server)
        figures = {
            "clients": clients,
            "alone_kib": alone,
            "idle_connection_kib": round((idle - alone) / clients, 1),
            "slow_watcher_kib": round((watched - idle) / clients, 1),
        }
        print(json.dumps(figures))


def tell(directory: Path) -> None:
    """Makes more events than the kernel buffers for a connection that is not read."""
    row = {"at": datetime.now(UTC), "kind": "tenant.made", "actor": "operator:x", "request_id": "x", "object": "x"}
    rows = [row | {"detail": {"text": "x" * DETAIL_BYTES}} for _ in range(EVENTS)]

    def write(session: Session) -> None:
        session.execute(insert(Event), rows)

    with contextlib.closing(Database(f"sqlite:///{directory}/vgpumgr.db")) as database:
        database.run(write)


def crowd(
    server: Server, tls: ssl.SSLContext, count: int, said: str, until: contextlib.ExitStack
) -> list[ssl.SSLSocket]:
    """Opens connections that read almost nothing."""
    made = []
    host, port = re.fullmatch(r"https://(.*):(\d+)", server.url).groups()  # type: ignore[union-attr]
    for _ in range(count):
        plain = until.enter_context(socket.socket())
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(120)
        plain.connect((host, int(port)))
        each = until.enter_context(tls.wrap_socket(plain, server_hostname=host))
        each.sendall(said.encode())
        made.append(each)
    return made


def resident_kib(server: Server) -> int:
    """Returns the resident memory of the process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])  # type: ignore[index]


if __name__ == "__main__":
    main()
