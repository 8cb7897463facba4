# SPDX-License-Identifier: Apache-2.0
"""The client's watch against made-up answers: cut short, refused, repeated."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import httpx2
import pytest

from tests.unit.cli.conftest import Cli
from vgpumgr.client import Client
from vgpumgr.client.watch import PAUSES_S
from vgpumgr.errors import ApiAnswerError, ApiError, ApiUnreachableError

EPOCH = "0123456789ab"
SSE = {"Content-Type": "text/event-stream"}


def block(seq: int, *, kind: str = "slice.claimed") -> str:
    event = {"seq": seq, "at": "2026-11-22T00:00:00Z", "kind": kind, "actor": "a", "tenant": None, "object": "\u2028é"}
    return f"id: {EPOCH}-{seq}\ndata: {json.dumps(event | {'detail': {}}, ensure_ascii=False)}\n\n"


def beat(seq: int) -> str:
    return f": alive\nid: {EPOCH}-{seq}\n\n"


def problem(code: str, status: int, **headers: str) -> httpx2.Response:
    said = {"title": "t", "status": status, "detail": "d", "code": code, "request_id": "r"}
    return httpx2.Response(status, json=said, headers=headers)


class Stream(httpx2.SyncByteStream):
    """Yields pieces, and then ends or raises an error."""

    def __init__(self, pieces: Iterable[bytes], error: Exception | None = None) -> None:
        self.pieces = pieces
        self.error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.error is not None:
            raise self.error


class Api:
    """Sends one answer after the other; records the requests in `asked`."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[tuple[str, str]] = []
        self.slept_s: list[float] = []
        self._answers = list(answers)
        self.client = Client(
            "http://127.0.0.1", "token", transport=httpx2.MockTransport(self._answer), sleep=self.slept_s.append
        )

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append((str(request.url.query.decode()), request.headers.get("last-event-id", "")))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        stream = answer if isinstance(answer, Stream) else Stream([answer.encode()])
        return httpx2.Response(200, headers=SSE, stream=stream)

    def first(self, count: int, **asked: Any) -> list[int]:
        return [event.seq for event in islice(self.client.watch_events(**asked), count)]


def test_events_come_as_they_were_said_and_the_connection_is_made_again() -> None:
    api = Api(f"retry: 1000\n{beat(4)}" + block(5) + block(6), beat(6) + block(7) + beat(9), block(10) + block(11))
    assert api.first(5, after=4, about="slice", tenant="acme") == [5, 6, 7, 10, 11]
    assert api.asked == [
        ("after=4&about=slice&tenant=acme", ""),
        *[("after=4&about=slice&tenant=acme", each) for each in (f"{EPOCH}-6", f"{EPOCH}-9")],
    ]


def test_what_was_cut_short_is_asked_for_again_and_nothing_comes_twice() -> None:
    whole = (block(1) + block(2)).encode()
    for cut in range(len(whole)):
        api = Api(Stream([whole[:cut], b""], httpx2.ReadError("reset")), Stream([bytes([each]) for each in whole]), "")
        assert api.first(2) == [1, 2]


def test_lines_end_with_lf_or_crlf_and_with_nothing_else() -> None:
    api = Api((beat(0) + block(1)).replace("\n", "\r\n"))
    (event,) = islice(api.client.watch_events(), 1)
    assert event.object == "\u2028é"


def test_an_api_that_is_gone_for_a_while_is_waited_for() -> None:
    gone: list[Any] = [httpx2.ConnectError("refused"), problem("database.busy", 503), httpx2.ReadTimeout("silent")] * 4
    api = Api(block(1), *gone, problem("rate.exceeded", 429), block(2))
    assert api.first(2) == [1, 2]
    assert api.slept_s[: len(PAUSES_S)] == list(PAUSES_S)
    assert set(api.slept_s[len(PAUSES_S) :]) == {PAUSES_S[-1]}


def test_one_that_never_was_there_is_an_error() -> None:
    api = Api(*[httpx2.ConnectError("refused")] * (len(PAUSES_S) + 1))
    with pytest.raises(ApiUnreachableError):
        api.first(1)
    api = Api(*[problem("database.busy", 503)] * (len(PAUSES_S) + 1))
    with pytest.raises(ApiError, match="d"):
        api.first(1)


@pytest.mark.parametrize(
    ("code", "status"), [("watch.expired", 410), ("auth.expired", 401), ("auth.invalid", 401), ("object.unknown", 404)]
)
def test_what_ends_a_watch_for_good_is_raised(code: str, status: int) -> None:
    said = json.dumps({"title": "t", "status": status, "detail": "d", "code": code, "request_id": "r"})
    for answers in (
        [problem(code, status)],
        [block(1), problem(code, status)],
        [block(1) + f"event: problem\ndata: {said}\n\n"],
    ):
        api = Api(*answers)
        with pytest.raises(ApiError) as caught:
            api.first(2)
        assert caught.value.code == code


@pytest.mark.parametrize(("code", "status"), [("database.busy", 503), ("rate.exceeded", 429)])
def test_a_problem_that_passes_is_no_end(code: str, status: int) -> None:
    said = json.dumps({"title": "t", "status": status, "detail": "d", "code": code, "request_id": "r"})
    assert Api(block(1) + f"event: problem\ndata: {said}\n\n", block(2)).first(2) == [1, 2]


@pytest.mark.parametrize(
    "said", ["data: {}\n\n", "data: x\n\n", "event: problem\ndata: {}\n\n", "data: " + "x" * (5 << 20)]
)
def test_what_is_no_event_is_no_answer_of_ours(said: str) -> None:
    with pytest.raises(ApiAnswerError):
        Api(said).first(1)


@pytest.mark.parametrize(("code", "status"), [("rate.exceeded", 429), ("database.busy", 503)])
def test_a_request_that_came_at_a_bad_time_is_repeated_when_the_api_says_so(code: str, status: int) -> None:
    page = httpx2.Response(200, json={"items": [], "next_page_token": ""})
    api = Api(problem(code, status, **{"Retry-After": "3"}), page)
    assert list(api.client.tenants()) == []
    assert sum(api.slept_s) == 3
    api = Api(problem(code, status, **{"Retry-After": "60"}))
    with pytest.raises(ApiError) as caught:
        list(api.client.tenants())
    assert (caught.value.code, caught.value.retry_after_s) == (code, 60)
    assert api.slept_s == []


def test_the_command_goes_on_behind_what_it_printed_last(cli: Cli) -> None:
    assert cli("get", "events", "--after", "3", "--watch", "--about", "slice,host").status == 4
    assert [request.headers.get("last-event-id") for request in cli.api.requests] == [None, f"{EPOCH}-5", f"{EPOCH}-6"]
    assert {str(request.url.query.decode()) for request in cli.api.requests} == {"after=3&about=slice%2Chost"}
