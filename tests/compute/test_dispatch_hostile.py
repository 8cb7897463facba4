# SPDX-License-Identifier: Apache-2.0
"""Input that no correct client sends: malformed messages, forged handles, wild numbers, and random mixtures."""

import random
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compute.api.layout import HEADER_BYTES
from compute.api.layout import request as request_layout
from tests.compute.dispatch_rig import (
    ABSENT,
    HEADER,
    INLINE,
    INVALID_COMMAND_QUEUE,
    INVALID_CONTEXT,
    INVALID_EVENT,
    INVALID_KERNEL,
    INVALID_MEM_OBJECT,
    INVALID_PROGRAM,
    INVALID_SAMPLER,
    INVALID_VALUE,
    KINDS,
    REQUESTS,
    Driver,
    buffer,
    build,
    make_driver,
    pack,
    running,
)

BULK_BYTES = (8 << 20) - 4096 - (2 << 20)
SOURCE = b"kernel void add(global int *a, int b, local int *l) { a[get_global_id(0)] += b; }"
# The error for a missing object of each kind.
WRONG = {
    "CONTEXT": INVALID_CONTEXT,
    "QUEUE": INVALID_COMMAND_QUEUE,
    "MEMORY": INVALID_MEM_OBJECT,
    "SAMPLER": INVALID_SAMPLER,
    "PROGRAM": INVALID_PROGRAM,
    "KERNEL": INVALID_KERNEL,
    "EVENT": INVALID_EVENT,
    "MAPPING": INVALID_VALUE,
}
# For each kind, a handle that no other kind uses.
ONLY = {kind: 100 + number for kind, number in KINDS.items()}


class Shared:
    """A backend that tests share while they leave it unchanged. After a test that changed it, a new one is started."""

    def __init__(self, program: Path, cache: Path) -> None:
        self.program, self.cache = program, cache
        self.stack = ExitStack()
        self.driver: Driver | None = None

    def get(self) -> Driver:
        if self.driver is None or self.driver.process.poll() is not None:
            self.driver = self.stack.enter_context(running(self.program, self.cache))
            one_of_each(self.driver)
        return self.driver


@pytest.fixture(scope="module")
def shared(dispatch_driver: Path, pocl_cache: Path) -> Iterator[Shared]:
    one = Shared(dispatch_driver, pocl_cache)
    with one.stack:
        yield one


@pytest.fixture
def driver(shared: Shared) -> Driver:
    """A backend with one object of each kind."""
    return shared.get()


def one_of_each(driver: Driver) -> None:
    driver.do("CREATE_CONTEXT", context=ONLY["CONTEXT"], devices=[0])
    context = {"context": ONLY["CONTEXT"]}
    driver.do("CREATE_QUEUE", queue=ONLY["QUEUE"], **context)
    stored = {"storage_offset": 1 << 20, "storage_bytes": 4096, "contents_offset": ABSENT}
    driver.do("CREATE_BUFFER", memory=ONLY["MEMORY"], flags=1, bytes=4096, **stored, **context)
    driver.do("CREATE_SAMPLER", sampler=ONLY["SAMPLER"], addressing=0x1130, filter=0x1140, **context)
    assert build(driver, ONLY["PROGRAM"], SOURCE, context=ONLY["CONTEXT"]).status == 0
    driver.do("CREATE_KERNEL", kernel=ONLY["KERNEL"], program=ONLY["PROGRAM"], name=b"add")
    driver.do("CREATE_USER_EVENT", event=ONLY["EVENT"], **context)
    mapping = {"memory": ONLY["MEMORY"], "mapping": ONLY["MAPPING"], "flags": 1, "bytes": 64}
    assert driver.run("MAP_BUFFER", queue=ONLY["QUEUE"], **mapping) == 0


def valid_fields(name: str) -> dict[str, Any]:
    """Fields that make a message of this name refer to existing objects."""
    values: dict[str, Any] = {}
    for field in request_layout(REQUESTS[name]).fields:
        if field.role in ("handle", "optional") and field.object in ONLY:
            values[field.name] = ONLY[field.object]
        elif field.role == "new":
            values[field.name] = 500
    if name == "RELEASE":
        values |= {"kind": KINDS["EVENT"], "handle": 500}
    return values


def alive(driver: Driver) -> None:
    """Check that the backend still answers and that its queue still works."""
    assert driver.ask("GET", query=9, device=0, param=0x1001, value_bytes=4).status == 0
    assert driver.run("MARKER", queue=ONLY["QUEUE"]) == 0


@pytest.mark.parametrize("name", REQUESTS)
def test_a_message_of_any_wrong_length_is_malformed(driver: Driver, name: str) -> None:
    good = pack(name, 9, **valid_fields(name))
    for size in (*range(HEADER_BYTES, len(good), 8), len(good) + 8, len(good) + 4096):
        rest = good[HEADER_BYTES:size].ljust(size - HEADER_BYTES, b"\0")
        assert "malformed" in driver.malformed(HEADER.pack(size, REQUESTS[name].number, 0, 9) + rest), size
    # Wrong reserved fields, flags and counts.
    layout = request_layout(REQUESTS[name])
    at = HEADER_BYTES
    wrong = [HEADER.pack(len(good), REQUESTS[name].number, 0x8000, 9) + good[HEADER_BYTES:]]
    counts = {array.count: array.most for array in layout.arrays}
    for field in layout.fields:
        numbers: tuple[int, ...] = ()
        if field.role == "reserved":
            wrong.append(good[:at] + b"\1" + good[at + 1 :])
        elif field.name in counts:
            numbers = (counts[field.name] + 1, 2**31, 2**32 - 1)
        elif field.role in ("new", "handle") and field.name != "event":
            numbers = (0, 1 << 20, 2**32 - 1)
        wrong += [good[:at] + struct.pack("=I", number) + good[at + 4 :] for number in numbers]
        at += field.size
    for message in wrong:
        assert "malformed" in driver.malformed(message), message
    alive(driver)


@pytest.mark.parametrize("name", [name for name, message in REQUESTS.items() if request_layout(message).blobs])
def test_a_blob_outside_the_bulk_area_is_malformed(driver: Driver, name: str) -> None:
    for blob in request_layout(REQUESTS[name]).blobs:
        wild = [(0, BULK_BYTES + 1), (BULK_BYTES, 1), (BULK_BYTES - 1, 2), (2**63, 2**63), (1, 2**64 - 1)]
        wild += [] if blob.absent else [(ABSENT, 0)]
        wild += [] if blob.inline else [(INLINE, 0)]
        wild += [(INLINE, (32 << 10) + 8), (INLINE, 8)] if blob.inline and not blob.written else []
        for offset, size in wild:
            where = {f"{blob.name}_offset": offset, f"{blob.name}_bytes": size}
            assert "malformed" in driver.malformed(pack(name, 9, **valid_fields(name) | where)), where
    alive(driver)


@pytest.mark.parametrize("op", [0, 21, 31, 52, 255, 256, 257, 65535])
def test_an_operation_that_there_is_not_is_malformed(driver: Driver, op: int) -> None:
    driver.malformed(HEADER.pack(32, op, 0, 1) + bytes(16))
    alive(driver)


def handles() -> list[tuple[str, str, str]]:
    """Message, field and kind of each handle whose kind is known."""
    return [
        (name, field.name, field.object)
        for name, message in REQUESTS.items()
        for field in request_layout(message).fields
        if field.role == "handle" and field.object in ONLY
    ]


@pytest.mark.parametrize(("name", "field", "kind"), handles())
def test_a_handle_of_another_kind_is_no_handle(driver: Driver, name: str, field: str, kind: str) -> None:
    for other, handle in ONLY.items():
        if other == kind:
            continue
        values = valid_fields(name) | {field: handle}
        status = driver.run(name, **values) if REQUESTS[name].command else driver.ask(name, **values).status
        assert status < 0, other
        if kind == "QUEUE" or not REQUESTS[name].command:
            assert status == WRONG[kind], other
    alive(driver)


def test_a_number_in_use_is_not_given_again(driver: Driver) -> None:
    for name, message in REQUESTS.items():
        for field in request_layout(message).fields:
            if field.role != "new" or field.object not in ONLY or message.command:
                continue
            values = valid_fields(name) | {field.name: ONLY[field.object]}
            assert driver.ask(name, **values).status < 0, name
    event = {"queue": ONLY["QUEUE"], "event": ONLY["EVENT"]}
    assert driver.run("MARKER", **event) == INVALID_EVENT
    # All objects are unchanged.
    launch = {"kernel": ONLY["KERNEL"], "dimensions": 1, "global": [4, 0, 0], "queue": ONLY["QUEUE"]}
    arguments = [buffer(ONLY["MEMORY"]), struct.pack("=IIQ", 1, 4, 3), struct.pack("=IIQ", 5, 64, 0)]
    assert driver.run("LAUNCH", arguments=arguments, **launch) == 0
    assert driver.get(1 << 20, 4) == struct.pack("=i", 3)


def test_arguments_of_any_kind_and_size_are_checked(driver: Driver) -> None:
    good = [buffer(ONLY["MEMORY"]), struct.pack("=IIQ", 1, 4, 3), struct.pack("=IIQ", 5, 64, 0)]
    wild = [
        struct.pack("=IIQ", kind, size, number)
        for kind in (0, 1, 2, 3, 4, 5, 6, 2**32 - 1)
        for size in (0, 4, 8, 9, 32 << 10, 2**32 - 1)
        for number in (0, 1, ONLY["SAMPLER"], 2**20, 2**32 + ONLY["MEMORY"], 2**64 - 1)
    ]
    launch = {"kernel": ONLY["KERNEL"], "dimensions": 1, "global": [4, 0, 0], "queue": ONLY["QUEUE"]}
    for at, argument in ((at, argument) for at in range(3) for argument in wild):
        kind, size, number = struct.unpack("=IIQ", argument)
        fine = {0: kind == 2 and number == 0, 1: kind == 1 and size == 4, 2: kind == 5 and 0 < size <= 32 << 10}[at]
        if fine or (at == 2 and kind == 5 and size):
            continue
        arguments = [*good[:at], argument, *good[at + 1 :]]
        assert driver.run("LAUNCH", arguments=arguments, data=bytes(16), **launch) < 0, (at, kind, size, number)
    for dimensions in (0, 4, 2**32 - 1):
        assert driver.run("LAUNCH", **launch | {"dimensions": dimensions, "arguments": good}) < 0
    huge = {"dimensions": 3, "global": [2**32, 2**32, 2**32], "arguments": good}
    assert driver.run("LAUNCH", **launch | huge) < 0
    alive(driver)


WILD = [0, 1, 2, 3, 4, 7, 8, 64, 100, 4095, 4096, 2**16, 2**20, 2**31, 2**32 - 1, 2**63, 2**64 - 2, 2**64 - 1]


def random_message(source: random.Random, name: str) -> bytes:
    """Return a mostly well-formed message with existing objects and wild numbers."""
    values = valid_fields(name)
    layout = request_layout(REQUESTS[name])
    counts = {array.count for array in layout.arrays}
    for field in layout.fields:
        if field.name in counts or field.role == "reserved" or source.random() < 0.6:
            continue
        most = 1 << (8 * field.size // max(field.array, 1))
        if field.ctype == "int32_t":
            values[field.name] = source.choice([0, -1, -5])
        elif field.array:
            values[field.name] = [source.choice(WILD[:10]) % most for _ in range(field.array)]
        elif field.role in ("handle", "new", "optional"):
            values[field.name] = source.choice([*ONLY.values(), 500, 501, 502])
        else:
            values[field.name] = source.choice(WILD) % most
    if name == "LAUNCH":
        # The launch may access only one element of the buffer that has the handle now: memory behind it may be
        # unmapped.
        values["global"] = [source.choice([0, 1]), *(source.choice([0, 1, 3, 64]) for _ in range(2))]
        values["offset"] = [0, 0, 0]
        values["arguments"] = [buffer(ONLY["MEMORY"]), struct.pack("=IIQ", 1, 4, 1), struct.pack("=IIQ", 5, 64, 0)]
    for blob in layout.blobs:
        if source.random() < 0.5 and blob.inline and not blob.written:
            values.pop(f"{blob.name}_offset", None)
            values.pop(f"{blob.name}_bytes", None)
            values[blob.name] = source.randbytes(source.choice([0, 1, 8, 100]))
    flags = source.choice([0, 0, 1]) if REQUESTS[name].command else 0
    data = bytearray(pack(name, source.choice([0, 5]), flags, **values))
    if source.random() < 0.1:
        at = source.randrange(HEADER_BYTES, len(data)) if len(data) > HEADER_BYTES else 0
        data[at] ^= 1 << source.randrange(8)
    return bytes(data)


def play(driver: Driver, seed: int, count: int) -> None:
    """Send random messages. Other tests cover messages that build programs or print."""
    source = random.Random(seed)
    slow = ("BUILD_PROGRAM", "COMPILE_PROGRAM", "LINK_PROGRAM", "CREATE_PROGRAM_WITH_BINARY")
    names = [name for name in REQUESTS if name not in slow]
    for _ in range(count):
        driver.frame(1, random_message(source, source.choice(names)))
        if source.random() < 0.01:
            one_or_none(driver)
    driver.state()


def one_or_none(driver: Driver) -> None:
    """Complete user events, so queues do not stop forever."""
    driver.send("SET_USER_EVENT_STATUS", event=ONLY["EVENT"], status=0)


@pytest.mark.parametrize("seed", range(3))
def test_random_messages_leave_a_backend_that_answers_and_ends(
    dispatch_driver: Path, pocl_cache: Path, seed: int
) -> None:
    with running(dispatch_driver, pocl_cache) as driver:
        one_of_each(driver)
        play_and_end(driver, seed, 2000)


def play_and_end(driver: Driver, seed: int, count: int) -> None:
    driver.tolerant = True
    play(driver, seed, count)
    assert driver.close() == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_random_messages_break_nothing_that_a_sanitizer_sees(tmp_path: Path, seed: int) -> None:
    program = make_driver(tmp_path, sanitize=True)
    cache = tmp_path / "cache"
    cache.mkdir()
    with running(program, cache) as driver:
        one_of_each(driver)
        play_and_end(driver, seed, 20000)
