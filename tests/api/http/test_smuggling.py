# SPDX-License-Identifier: Apache-2.0
"""A request is refused if a proxy may see its end elsewhere, and nothing more is read from its connection.

RFC 9112, section 6.1. Otherwise, data behind such a request would be answered as a separate request.
"""

import pytest
from starlette.types import Receive, Scope, Send

from tests.api.http.listening import listening, problem, run

BEHIND = b"GET /behind HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


class Paths:
    """An application that records the requested paths and reads the bodies."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def heard(app: Paths, *said: bytes) -> bytes:
    async with listening(app, idle_s=1) as server:
        return await (await server.open(*said)).heard()


def request(*headers: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST /first HTTP/" + version + b"\r\nHost: x\r\n" + b"".join(headers) + b"\r\n"


AMBIGUOUS = {
    "length first": request(b"Content-Length: 5\r\n", CHUNKED) + b"0\r\n\r\n",
    "length last": request(CHUNKED, b"Content-Length: 5\r\n") + b"0\r\n\r\n",
    "length of nothing": request(b"Content-Length: 0\r\n", CHUNKED) + b"0\r\n\r\n",
    "with another case": request(b"content-LENGTH: 5\r\n", b"transfer-ENCODING: Chunked\r\n") + b"0\r\n\r\n",
    "chunks of HTTP/1.0": request(CHUNKED, b"Connection: keep-alive\r\n", version=b"1.0") + b"0\r\n\r\n",
    "a length folded into Host": request(b" Content-Length: 5\r\n") + b"12345",
    # h11 itself rejects these at present.
    "two lengths": request(b"Content-Length: 5\r\n", b"Content-Length: 6\r\n") + b"12345",
    "a list of lengths": request(b"Content-Length: 5, 6\r\n") + b"12345",
    "a signed length": request(b"Content-Length: +5\r\n") + b"12345",
    "two codings": request(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "an unknown coding": request(b"Transfer-Encoding: gzip, chunked\r\n") + b"0\r\n\r\n",
    "a disguised coding": request(b"Transfer-Encoding: xchunked\r\n") + b"0\r\n\r\n",
    "a name with a blank": request(b"Content-Length : 5\r\n") + b"12345",
    "a chunk that is longer than it says": request(CHUNKED) + b"1\r\n12\r\n0\r\n\r\n",
    "a chunk of a negative size": request(CHUNKED) + b"-1\r\n\r\n0\r\n\r\n",
    "a chunk of a hexadecimal prefix": request(CHUNKED) + b"0x1\r\n1\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("said", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_nothing_behind_an_ambiguous_request_is_answered(said: bytes) -> None:
    app = Paths()
    answer = run(heard(app, said + BEHIND))
    assert "/behind" not in app.asked
    assert answer.count(b"HTTP/1.1 ") == 1
    status, code, headers = problem(answer)
    assert (status, code) in ((400, "body.invalid"),)
    assert headers["connection"] == "close"


@pytest.mark.parametrize("said", [AMBIGUOUS["length first"], AMBIGUOUS["chunks of HTTP/1.0"]])
def test_an_ambiguous_request_is_not_carried_out(said: bytes) -> None:
    app = Paths()
    assert b" 400 " in run(heard(app, said))
    assert app.asked == []


def test_the_same_holds_for_a_request_on_a_kept_connection_whose_parts_come_late() -> None:
    app = Paths()
    answer = run(heard(app, BEHIND, AMBIGUOUS["length first"], BEHIND))
    assert app.asked == ["/behind"]
    assert answer.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize("said", [request(CHUNKED) + b"0\r\n\r\n", request(b"Content-Length: 2\r\n") + b"{}"])
def test_what_has_one_end_is_answered_and_so_is_what_comes_behind_it(said: bytes) -> None:
    app = Paths()
    run(heard(app, said + BEHIND))
    assert app.asked == ["/first", "/behind"]
