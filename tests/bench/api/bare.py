# SPDX-License-Identifier: Apache-2.0
"""The least that a server with the API's libraries can do: the same TLS and HTTP, and always the same answer.

    python -m tests.bench.api.bare CERTIFICATE KEY

The difference between a heartbeat and this is the API's own cost.
"""

import asyncio
import socket
import ssl
import sys
from typing import Any

import uvicorn

BODY = b"{}"


async def answer(_scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application. It reads the whole request body."""
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


def main(certificate: str, key: str) -> None:
    config = uvicorn.Config(
        answer,
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    config.load()
    assert config.ssl is not None
    config.ssl.options |= ssl.OP_NO_TICKET
    config.ssl.num_tickets = 0
    with socket.create_server(("127.0.0.1", 0), backlog=config.backlog) as listener:
        print(f"listening on https://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
        asyncio.run(uvicorn.Server(config).serve([listener]))


if __name__ == "__main__":
    main(*sys.argv[1:])
