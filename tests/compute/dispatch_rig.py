# SPDX-License-Identifier: Apache-2.0
"""A client of the OpenCL backend alone. It builds messages from the API's description; the library is real PoCL.

The backend runs in its own process (dispatch_driver.c), so a crash fails only the test that caused it.
"""

import contextlib
import ctypes.util
import itertools
import os
import queue
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compute.api.layout import HEADER_BYTES, Layout, all_layouts
from compute.api.layout import request as request_layout
from compute.api.model import Field, Message
from compute.api.opencl import OPENCL

ROOT = Path(__file__).resolve().parents[2]
COMPUTE = ROOT / "compute"
LIMIT_S = 120.0
HEADER = struct.Struct("=IHHQ")
FRAME = struct.Struct("=II")
STATE = struct.Struct("=IIIIQQQQQQ")
LETTERS = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "int32_t": "i", "uint64_t": "Q"}

REQUEST, WRITE, READ, LEASE, STATE_, QUIT, ROOM, FAIL = range(1, 9)
REPLY, WINDOW, NEWS, MALFORMED, CLOSED = range(1, 6)

REQUESTS: dict[str, Message] = {message.name: message for message in OPENCL.requests}
OPS: dict[int, str] = {message.number: message.name for message in (*OPENCL.requests, *OPENCL.replies)}
_, ANSWER_LAYOUTS, REPLY_LAYOUTS = all_layouts(OPENCL)
ANSWERS = {layout.name.removesuffix("_ANSWER"): layout for layout in ANSWER_LAYOUTS}
REPLIES = {layout.name: layout for layout in REPLY_LAYOUTS}
CONSTANTS = {constant.name: constant.value for constant in OPENCL.constants}
INLINE = 2**64 - 1
ABSENT = 2**64 - 2
NOTIFY, PROGRESS = 1, 2
KINDS = {name: value for name, value, _ in next(e for e in OPENCL.enumerations if e.name == "kind").values}

# from CL/cl.h
SUCCESS = 0
BUILD_PROGRAM_FAILURE, COMPILE_PROGRAM_FAILURE, LINK_PROGRAM_FAILURE = -11, -15, -17
MEM_OBJECT_ALLOCATION_FAILURE, OUT_OF_RESOURCES = -4, -5
FAILED_WAIT = -14
INVALID_VALUE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_QUEUE_PROPERTIES = -30, -33, -34, -35
INVALID_COMMAND_QUEUE, INVALID_MEM_OBJECT, INVALID_SAMPLER, INVALID_BINARY = -36, -38, -41, -42
INVALID_PROGRAM, INVALID_PROGRAM_EXECUTABLE, INVALID_KERNEL_NAME, INVALID_KERNEL = -44, -45, -46, -48
INVALID_ARG_VALUE, INVALID_ARG_SIZE, INVALID_KERNEL_ARGS, INVALID_WORK_DIMENSION = -50, -51, -52, -53
INVALID_EVENT_WAIT_LIST, INVALID_EVENT, INVALID_OPERATION, INVALID_GLOBAL_WORK_SIZE = -57, -58, -59, -63
OUT_OF_ORDER, PROFILING = 1, 2


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def pack_fields(fields: tuple[Field, ...], values: dict[str, Any]) -> bytes:
    """Pack fixed fields in order. A field without a value is 0."""
    out = b""
    for field in fields:
        value = values.pop(field.name, 0)
        if field.array:
            out += struct.pack(f"={field.array}{LETTERS[field.ctype]}", *(value or [0] * field.array))
        else:
            out += struct.pack(f"={LETTERS[field.ctype]}", value)
    return out


def pack_elements(element_bytes: int, ctype: str, elements: Any) -> bytes:
    if isinstance(elements, bytes):
        return elements
    if ctype in LETTERS:
        return struct.pack(f"={len(elements)}{LETTERS[ctype]}", *elements)
    return b"".join(elements)


def pack(name: str, call: int = 0, flags: int = 0, /, **values: Any) -> bytes:
    """Pack a request. Arrays and inline blobs are given by name; counts and offsets are derived from them."""
    message = REQUESTS[name]
    layout = request_layout(message)
    tail = b""
    for array in layout.arrays:
        elements = values.pop(array.name, b"")
        values.setdefault(array.count, len(elements) // array.size if isinstance(elements, bytes) else len(elements))
        tail += padded(pack_elements(array.size, array.ctype, elements))
    for blob in layout.blobs:
        if blob.name in values:
            data = values.pop(blob.name)
            values[f"{blob.name}_offset"], values[f"{blob.name}_bytes"] = INLINE, len(data)
            tail += padded(data)
        else:
            values.setdefault(f"{blob.name}_offset", ABSENT if blob.absent else INLINE if blob.inline else 0)
    fixed = pack_fields(layout.fields, values)
    assert not values, f"{name} has no {', '.join(values)}"
    return HEADER.pack(HEADER_BYTES + len(fixed) + len(tail), message.number, flags, call) + fixed + tail


@dataclass
class Reply:
    """A message of the backend: its fixed fields and arrays by name."""

    name: str
    call: int
    values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


def unpack_fields(layout: Layout, data: bytes, at: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    for field in layout.fields:
        letter = f"={max(field.array, 1)}{LETTERS[field.ctype]}"
        got = struct.unpack_from(letter, data, at)
        values[field.name] = list(got) if field.array else got[0]
        at += field.size
    return values, at


def unpack(data: bytes) -> Reply:
    """Decode a reply and check its length."""
    size, op, _, call = HEADER.unpack_from(data)
    assert size == len(data)
    name = OPS[op]
    layout = REPLIES[name]
    values, at = unpack_fields(layout, data, HEADER_BYTES)
    if name == "ANSWER" and len(data) > at:
        layout = ANSWERS[OPS[values["answered"]]]
        values, at = unpack_fields(layout, data, HEADER_BYTES)
    for array in layout.arrays:
        count = values[array.count]
        raw = data[at : at + count * array.size]
        values[array.name] = (
            list(struct.unpack(f"={count}{LETTERS[array.ctype]}", raw))
            if array.ctype in LETTERS and array.ctype != "uint8_t"
            else raw
        )
        at += (count * array.size + 7) & ~7
    assert at == len(data), name
    return Reply(name, call, values)


def value(data: bytes) -> bytes:
    """Encode a launch argument of at most 8 bytes."""
    return struct.pack("=II8s", 1, len(data), data)


def long_value(offset: int, size: int) -> bytes:
    return struct.pack("=IIQ", 1, size, offset)


def buffer(handle: int) -> bytes:
    return struct.pack("=IIQ", 2, 0, handle)


def image(handle: int) -> bytes:
    return struct.pack("=IIQ", 3, 0, handle)


def sampler(handle: int) -> bytes:
    return struct.pack("=IIQ", 4, 0, handle)


def local(size: int) -> bytes:
    return struct.pack("=IIQ", 5, size, 0)


@dataclass(frozen=True)
class State:
    """The work that the backend reports as pending."""

    queued: int
    under_way: int
    kernel_id: int
    full: int
    hint_ns: int
    submitted: int
    finished: int
    failed: int
    reserved: int
    compilations: int


class DriverError(Exception):
    """The driver has ended."""


class Driver:
    """A running backend and its client."""

    def __init__(self, program: Path, cache: Path, memory: int = 256 << 20, window: int = 8 << 20) -> None:
        library = ctypes.util.find_library("pocl")
        assert library, "PoCL is not installed"
        # LLVM frees its memory only when the process ends.
        sanitizer = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
        environment = {**os.environ, **sanitizer, "POCL_CACHE_DIR": str(cache), "POCL_MAX_PTHREAD_COUNT": "2"}
        self.process = subprocess.Popen(
            [str(program), library, str(memory), str(window)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.calls = itertools.count(1)
        self.frames: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.kept: list[Reply] = []
        self.printed = b""
        # True while a test sends malformed messages on purpose.
        self.tolerant = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        out = self.process.stdout
        assert out
        while head := out.read(FRAME.size):
            kind, size = FRAME.unpack(head)
            self.frames.put((kind, out.read(size)))
        self.frames.put((0, b""))

    def frame(self, kind: int, data: bytes) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(FRAME.pack(kind, len(data)) + data)
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise DriverError from error

    def next_frame(self) -> tuple[int, bytes]:
        kind, data = self.frames.get(timeout=LIMIT_S)
        if kind == 0:
            raise DriverError(f"status {self.process.wait(timeout=LIMIT_S)}")
        return kind, data

    def wait_frame(self, wanted: int) -> bytes:
        """Return the next frame of this kind, and keep replies that come before it."""
        while True:
            kind, data = self.next_frame()
            if kind == wanted:
                return data
            if kind == REPLY:
                self.kept.append(unpack(data))
            elif not self.tolerant:
                raise AssertionError((kind, data))

    def reply(self, call: int, name: str = "ANSWER") -> Reply:
        """Return the reply to this call, and keep all other replies."""
        for i, kept in enumerate(self.kept):
            if kept.call == call and kept.name == name:
                return self.kept.pop(i)
        while True:
            kind, data = self.next_frame()
            if kind == MALFORMED:
                raise AssertionError(data.decode())
            got = unpack(data)
            if got.name == "PRINTF":
                self.printed += got.text
            if got.call == call and got.name == name:
                return got
            self.kept.append(got)

    def send(self, name: str, call: int = 0, flags: int = 0, /, **values: Any) -> None:
        self.frame(REQUEST, pack(name, call, flags, **values))

    def ask(self, name: str, /, **values: Any) -> Reply:
        """Send a request and return its answer."""
        call = next(self.calls)
        self.send(name, call, **values)
        return self.reply(call)

    def do(self, name: str, /, **values: Any) -> Reply:
        """Send a request whose answer must be success."""
        answer = self.ask(name, **values)
        assert answer.status == SUCCESS, (name, answer.status, answer.values)
        return answer

    def start(self, name: str, flags: int = NOTIFY, /, **values: Any) -> int:
        """Send a command that reports its completion, and return the number of the call."""
        call = next(self.calls)
        self.send(name, call, flags, **values)
        return call

    def completion(self, call: int) -> Reply:
        return self.reply(call, "COMPLETION")

    def run(self, name: str, /, **values: Any) -> int:
        """Send a command, wait until it ends, and return its status."""
        return int(self.completion(self.start(name, **values)).status)

    def malformed(self, data: bytes) -> str:
        """Send a message that no correct client sends, and return the backend's complaint."""
        self.frame(REQUEST, data)
        return self.wait_frame(MALFORMED).decode()

    def put(self, offset: int, data: bytes) -> None:
        self.frame(WRITE, struct.pack("=Q", offset) + data)

    def get(self, offset: int, size: int) -> bytes:
        self.frame(READ, struct.pack("=QQ", offset, size))
        return self.wait_frame(WINDOW)

    def lease(self, lent: bool, rivals: bool = False, longest_ns: int = 2**64 - 1) -> None:
        self.frame(LEASE, struct.pack("=IIQ", lent, rivals, longest_ns))

    def fail_markers(self, count: int) -> None:
        """Make the library's next `count` markers fail, like they do when memory runs out."""
        self.frame(FAIL, struct.pack("=I", count))

    def state(self) -> State:
        self.frame(STATE_, b"")
        return State(*STATE.unpack(self.wait_frame(NEWS)))

    def close(self) -> int:
        """Return the accelerator memory that is still counted after everything was released."""
        self.frame(QUIT, b"")
        (left,) = struct.unpack("=Q", self.wait_frame(CLOSED))
        assert self.process.wait(timeout=LIMIT_S) == 0
        return int(left)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait(timeout=LIMIT_S)
        self.reader.join(timeout=LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()


def make_driver(directory: Path, sanitize: bool = False) -> Path:
    """Build the driver with the backend's objects, if they have changed."""
    built = ROOT / "build" / ("compute-sanitized" if sanitize else "compute")
    flags = ["SANITIZE=1"] if sanitize else []
    made = subprocess.run(
        ["make", "-s", "-C", str(COMPUTE), *flags, str(built / "vgpu-child")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    objects = [*(built / "compute/executor/opencl").glob("*.o"), *(built / "kmod/sched").glob("*.o")]
    program = directory / "dispatch-driver"
    subprocess.run(
        [
            *("gcc", "-std=c11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread"),
            *(["-fsanitize=address,undefined"] if sanitize else []),
            *(f"-I{path}" for path in (COMPUTE, ROOT / "kmod", built / "generated")),
            *("-o", str(program), str(Path(__file__).with_name("dispatch_driver.c")), *map(str, objects), "-ldl"),
        ],
        check=True,
    )
    return program


@contextlib.contextmanager
def running(program: Path, cache: Path, **options: int) -> Iterator[Driver]:
    """A driver that has sent HELLO and has context 1 and queue 1."""
    driver = Driver(program, cache, **options)
    try:
        driver.do("HELLO", version=1)
        driver.do("CREATE_CONTEXT", context=1, devices=[0])
        driver.do("CREATE_QUEUE", queue=1, context=1)
        yield driver
    finally:
        driver.kill()


def build(driver: Driver, program: int, source: bytes, options: bytes | None = None, context: int = 1) -> Reply:
    """Build a program from source and return the answer to the build."""
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=program, context=context, source=source)
    return driver.ask("BUILD_PROGRAM", program=program, **({} if options is None else {"options": options}))
