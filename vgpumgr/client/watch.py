# SPDX-License-Identifier: Apache-2.0
"""Events as they happen: server-sent events, with a new connection whenever one breaks.

Each new connection sends the position of the last event, so each event comes once and in order, whichever replica of
the API answers. An ApiError ends a watch for good: the token is no longer valid, or ``watch.expired`` says that events
were missed.
"""

from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from vgpumgr.client.transport import Params, Transport
from vgpumgr.errors import ApiAnswerError, ApiError, ApiUnreachableError
from vgpumgr.wire.problem import Problem
from vgpumgr.wire.resources import Event

PATH = "/v1/events/watch"
SILENCE_S = 45.0
"""The API sends something every 15 s."""

PAUSES_S = (0.1, 0.5, 1.0, 2.0, 5.0)
BLOCK_MAX = 4 << 20
"""The largest event, in bytes."""

WORTH_ANOTHER_TRY = (429, 502, 503, 504)


def follow(api: Transport, params: Params) -> Iterator[Event]:
    """Yield events for ever. `params`: the query of each request.

    An API that cannot be reached at first is an error. If the API goes away later, the watch waits until it is back.
    """
    position = ""
    last, failures = 0, 0
    reached = False
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": position} if position else {})
        try:
            with api.stream(PATH, params=params, headers=headers, silence_s=SILENCE_S) as pieces:
                for block in _blocks(pieces):
                    reached, failures = True, 0
                    kind, data, position = block.get("event", ""), block.get("data", ""), block.get("id", position)
                    if kind == "problem":
                        raise ApiError(Problem.model_validate_json(data))
                    if not kind and data:
                        event = Event.model_validate_json(data)
                        if event.seq > last:
                            last = event.seq
                            yield event
        except ApiUnreachableError:
            if not reached and failures == len(PAUSES_S):
                raise
        except ApiError as error:
            if error.status not in WORTH_ANOTHER_TRY or (not reached and failures == len(PAUSES_S)):
                raise
        except ValidationError:
            raise ApiAnswerError(
                f"{api.url}{PATH} sent an invalid event; check that client and API are of the same version"
            ) from None
        api.pause(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
        failures += 1


def _blocks(pieces: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Yield the fields of each complete block. A line ends with LF or CRLF, and with nothing else."""
    rest = b""
    block: dict[str, str] = {}
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > BLOCK_MAX:
            raise ApiAnswerError(
                "the API sends an event that is too large; check that this is the URL of a vgpumgr API"
            )
        for line in lines:
            text = line.removesuffix(b"\r").decode(errors="replace")
            if not text:
                if block:
                    yield block
                block = {}
                continue
            name, _, value = text.partition(":")
            if name:
                block[name] = value.removeprefix(" ")
