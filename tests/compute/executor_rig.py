# SPDX-License-Identifier: Apache-2.0
"""What the tests of supervisor, child, gate and sandbox share. The test itself plays the arbiter and the client.

A Slice is a running vgpu-supervisor with its socket. It lends the lease when the test says so. A Client is one child's
window. All waits are for events with a long limit, never for a fixed time.
"""

import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPUTE = ROOT / "compute"
# With ASan and UBSan: test_supervisor_sanitized.py runs the other tests this way.
SANITIZED = "COMPUTE_SANITIZED" in os.environ
BUILT = ROOT / "build" / ("compute-sanitized" if SANITIZED else "compute")
FLAGS = ["-std=c11", "-O2", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pthread"]
if SANITIZED:
    FLAGS += ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]

# Longer than any step takes on a loaded machine. Only failing tests reach this limit.
LIMIT_S = 60.0
FOREVER = 2**64 - 1

# from protocol/control.h
START, KILL, FREEZE, THAW, DONE, FAILED, EXITED, MEMORY = range(1, 9)
CONTROL = struct.Struct("=IIQQQQQQQQQQQiI192s")
UNKNOWN, EXECUTOR, GATE = range(3)
# from kmod/uapi/vgpu_lease_page.h
NONE, LENT, RECALLED, EXPIRED = range(4)
READY, YIELD, RING = 1, 2, 3
WANT = 1
REQUEST = struct.Struct("=IIQIIQ")
LEASE_MAGIC = 0x6C767067
# from protocol/window.h: offsets of words
WINDOW_MAGIC = 0x77767067
PAGE = 4096
RING_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20
CHILD_AT = 64
REQUEST_RING_AT = 128
RING_SIZE = 4 * 64
REPLY_RING_AT = REQUEST_RING_AT + RING_SIZE
REASON_AT = REPLY_RING_AT + RING_SIZE
REASON_BYTES = 192
TAIL, HEAD, SLEEPING, BELL, FULL, SPACE = 0, 64, 128, 132, 192, 196
REQUEST_DATA_AT = PAGE
REPLY_DATA_AT = PAGE + RING_BYTES
STARTING, SERVING, LOST = range(3)
HEADER = struct.Struct("=IHHQ")
# from executor/child/sleep_backend.h
WORK, ECHO, RESERVE, RELEASE, COMPILE = range(1, 6)
SLEEP = struct.Struct("=IHHQQII")

SYS_FUTEX = 202
LIBC = ctypes.CDLL(None, use_errno=True)


def build(output: Path, *sources: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile and link one C program of the tests with sources of the product."""
    command = ["gcc", *FLAGS, *flags, f"-I{COMPUTE}", f"-I{ROOT / 'kmod'}", "-o", str(output), *map(str, sources)]
    subprocess.run(command, check=True)
    return output


def make_product() -> None:
    """Build supervisor and child from the present sources."""
    targets = [str(BUILT / name) for name in ("vgpu-child", "vgpu-supervisor")]
    sanitize = ["SANITIZE=1"] if SANITIZED else []
    made = subprocess.run(["make", "-s", "-C", str(COMPUTE), *sanitize, *targets], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr


def child_objects() -> list[Path]:
    """Objects of a child without its main program, for backends of tests."""
    executor = BUILT / "compute" / "executor"
    objects = [executor / "log.o", executor / "options.o"]
    objects += [*(executor / "sandbox").glob("*.o"), *(executor / "child").glob("*.o")]
    return [path for path in objects if path.name != "program.o"]


def memfd(name: str, size: int) -> int:
    """Make a sealed memory file, like the arbiter does."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    # F_ADD_SEALS with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL
    fcntl.fcntl(descriptor, 1033, 0x2 | 0x4 | 0x1)
    return descriptor


@dataclass(frozen=True)
class Message:
    """A datagram from the supervisor."""

    op: int
    sequence: int
    child: int
    processor_ns: int
    compilers: int
    hits: int
    kept_bytes: int
    gate_ns: int
    native_bytes: int
    timeslice_us: int
    status: int
    enforced: int
    reason: str


@dataclass(frozen=True)
class StreamRequest:
    """A datagram from a child to the arbiter."""

    op: int
    flags: int
    lease: int
    kernel_id: int
    hint_ns: int


@dataclass(frozen=True)
class Reply:
    """A message in the reply ring."""

    op: int
    call: int
    data: bytes

    @property
    def value(self) -> int:
        return int(struct.unpack_from("=Q", self.data)[0])

    @property
    def status(self) -> int:
        return int(struct.unpack_from("=I", self.data, 12)[0])


class Words:
    """32- and 64-bit words of a shared mapping. Each access reads or writes a whole word."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.halves = memoryview(memory).cast("I")
        self.wholes = memoryview(memory).cast("Q")
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def wake(self, at: int) -> None:
        """Change a futex word and wake all its waiters."""
        self.halves[at // 4] = (self.halves[at // 4] + 1) & 0xFFFFFFFF
        LIBC.syscall(SYS_FUTEX, ctypes.c_void_p(self.base + at), 1, 2**31 - 1, None, None, 0)

    def wait(self, at: int, value: int, limit_s: float) -> None:
        """Sleep while the word has this value, for at most `limit_s`."""

        class TimeSpec(ctypes.Structure):
            _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

        limit = TimeSpec(int(limit_s), int(limit_s % 1 * 1e9))
        LIBC.syscall(SYS_FUTEX, ctypes.c_void_p(self.base + at), 0, value, ctypes.byref(limit), None, 0)


class Window:
    """A client's side of a window."""

    def __init__(self, size: int = WINDOW_BYTES, *, descriptor: int | None = None) -> None:
        self.size = size
        self.descriptor = memfd("window", size) if descriptor is None else descriptor
        self.memory = mmap.mmap(self.descriptor, size)
        self.words = Words(self.memory)
        if descriptor is None:
            struct.pack_into("=IIQ", self.memory, 0, WINDOW_MAGIC, 1, size)
        self.tail = 0
        self.head = 0
        self.call = 0

    @property
    def state(self) -> int:
        return int(self.words.halves[CHILD_AT // 4])

    @property
    def reason(self) -> str:
        """The recorded reason why the child is lost."""
        return bytes(self.memory[REASON_AT : REASON_AT + REASON_BYTES]).split(b"\0")[0].decode()

    def word(self, ring: int, field_at: int) -> int:
        at = ring + field_at
        return int(self.words.wholes[at // 8] if field_at in {TAIL, HEAD} else self.words.halves[at // 4])

    def wait_for_state(self, state: int) -> None:
        """Wait until the child, or the process that reaped it, has set this state."""
        end = time.monotonic() + LIMIT_S
        while self.state != state:
            assert time.monotonic() < end, f"the child is in state {self.state}"
            assert state == LOST or self.state != LOST, "the child is lost"
            self.words.wait(CHILD_AT, self.state, 0.05)

    def publish(self, tail: int) -> None:
        """Set the tail of the request ring, true or not, and ring the bell."""
        self.words.wholes[(REQUEST_RING_AT + TAIL) // 8] = tail & FOREVER
        self.words.wake(REQUEST_RING_AT + BELL)

    def put_raw(self, message: bytes, *, ring: bool = True) -> None:
        """Wait for room and write bytes at the place of the next message."""
        at = self.tail % RING_BYTES
        if at + len(message) > RING_BYTES:
            self.wait_for_room(RING_BYTES - at + len(message))
            struct.pack_into("=IH", self.memory, REQUEST_DATA_AT + at, RING_BYTES - at, 0)
            self.tail += RING_BYTES - at
            at = 0
        self.wait_for_room(len(message))
        self.memory[REQUEST_DATA_AT + at : REQUEST_DATA_AT + at + len(message)] = message
        self.tail += len(message)
        if ring:
            self.publish(self.tail)

    def wait_for_room(self, size: int) -> None:
        end = time.monotonic() + LIMIT_S
        while self.tail + size - self.word(REQUEST_RING_AT, HEAD) > RING_BYTES:
            assert time.monotonic() < end, "the child takes no requests"
            space = self.word(REQUEST_RING_AT, SPACE)
            self.words.halves[(REQUEST_RING_AT + FULL) // 4] = 1
            self.publish(self.tail)
            if self.tail + size - self.word(REQUEST_RING_AT, HEAD) > RING_BYTES:
                self.words.wait(REQUEST_RING_AT + SPACE, space, 0.05)

    def put(self, op: int, value: int = 0, *, kernel_id: int = 0, ring: bool = True) -> int:
        """Send a request to the sleep backend and return the number of the call."""
        self.call += 1
        self.put_raw(SLEEP.pack(SLEEP.size, op, 0, self.call, value, kernel_id, 0), ring=ring)
        return self.call

    def take(self) -> Reply | None:
        """Return the next reply, or None if there is none yet."""
        while True:
            at = self.head % RING_BYTES
            if self.word(REPLY_RING_AT, TAIL) == self.head:
                return None
            size, op, _, call = HEADER.unpack_from(self.memory, REPLY_DATA_AT + at)
            if op:
                break
            self.head += RING_BYTES - at
        data = bytes(self.memory[REPLY_DATA_AT + at + HEADER.size : REPLY_DATA_AT + at + size])
        self.head += size
        return Reply(op, call, data)

    def give_room(self) -> None:
        """Tell the child how far the reply ring was read."""
        self.words.wholes[(REPLY_RING_AT + HEAD) // 8] = self.head
        self.words.wake(REPLY_RING_AT + SPACE)

    def reply(self) -> Reply:
        """Wait for the next reply."""
        end = time.monotonic() + LIMIT_S
        while True:
            bell = self.word(REPLY_RING_AT, BELL)
            self.words.halves[(REPLY_RING_AT + SLEEPING) // 4] = 1
            if reply := self.take():
                self.give_room()
                return reply
            assert self.state != LOST, "the child is lost"
            assert time.monotonic() < end, "no reply"
            self.words.wait(REPLY_RING_AT + BELL, bell, 0.05)

    def ask(self, op: int, value: int = 0) -> Reply:
        """Send one request and return its reply."""
        call = self.put(op, value)
        reply = self.reply()
        assert reply.call == call
        return reply


@dataclass
class Child:
    """The arbiter's view of a child."""

    number: int
    window: Window
    stream: Words
    requests: socket.socket

    @property
    def state(self) -> tuple[int, bool]:
        """The number of the lease, and whether the child is busy."""
        word = int(self.stream.wholes[0])
        return word >> 1, bool(word & 1)

    @property
    def submitted(self) -> int:
        return int(self.stream.wholes[3])

    @property
    def finished(self) -> int:
        return int(self.stream.wholes[4])

    def request(self) -> StreamRequest:
        """Return the child's next datagram to the arbiter."""
        self.requests.settimeout(LIMIT_S)
        op, flags, lease, kernel_id, _, hint_ns = REQUEST.unpack(self.requests.recv(REQUEST.size + 1))
        return StreamRequest(op, flags, lease, kernel_id, hint_ns)

    def has_request(self) -> bool:
        return bool(select.select([self.requests], [], [], 0)[0])


@dataclass
class Slice:
    """A supervisor with its socket and its tenant's lease page."""

    process: subprocess.Popen[str]
    control: socket.socket
    log: Path
    lease: Words
    lease_descriptor: int
    number: int = 0
    sequence: int = 0
    exited: dict[int, Message] = field(default_factory=dict)
    reserved: list[int] = field(default_factory=list)
    # Windows are closed together with the slice: select() in a whole lane supports about a thousand descriptors.
    windows: list[Window] = field(default_factory=list)

    def send(
        self, op: int, *, child: int = 0, descriptors: tuple[int, ...] = (), reason: str = "", **sizes: int
    ) -> int:
        self.sequence += 1
        message = CONTROL.pack(
            *(1, op, self.sequence, child, sizes.get("window", 0), sizes.get("memory", 0), 0, 0, 0, 0, 0),
            *(0, sizes.get("timeslice_us", 0), sizes.get("status", 0), 0),
            reason.encode(),
        )
        socket.send_fds(self.control, [message], list(descriptors))
        return self.sequence

    def receive(self) -> Message:
        """Return the next datagram of any kind except MEMORY. MEMORY can come at any time and is kept apart."""
        while (message := self._received()).op == MEMORY:
            pass
        return message

    def _received(self) -> Message:
        self.control.settimeout(LIMIT_S)
        data = self.control.recv(CONTROL.size + 1)
        assert len(data) == CONTROL.size, "the supervisor has ended"
        _, op, sequence, child, _, memory, *counts, reason = CONTROL.unpack(data)
        if op == MEMORY:
            self.reserved.append(memory)
        return Message(op, sequence, child, *counts, reason.split(b"\0")[0].decode())

    def wait_for_reserved(self, memory: int) -> None:
        """Wait until the supervisor reports this amount of reserved memory."""
        while not self.reserved or self.reserved[-1] != memory:
            assert self._received().op == MEMORY

    def answer(self, sequence: int) -> Message:
        """Return the answer to a request. EXITED messages that come before it are kept."""
        while True:
            message = self.receive()
            if message.op == EXITED:
                self.exited[message.child] = message
            else:
                assert message.sequence == sequence
                return message

    def wait_for_exit(self, child: int) -> Message:
        while child not in self.exited:
            message = self.receive()
            if message.op == EXITED:
                self.exited[message.child] = message
        return self.exited[child]

    def start(self, *, window: int = WINDOW_BYTES, memory: int = 1 << 30, arbiter: int | None = None) -> Child:
        """Start a child and wait until it serves."""
        child, message = self.try_start(window=window, memory=memory, arbiter=arbiter)
        assert message.op == DONE, message.reason
        try:
            child.window.wait_for_state(SERVING)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.log.read_text()}") from error
        return child

    def try_start(
        self,
        *,
        window: int = WINDOW_BYTES,
        memory: int = 1 << 30,
        number: int | None = None,
        arbiter: int | None = None,
    ) -> tuple[Child, Message]:
        """Ask for a child with a window of the actual size. `arbiter`: the descriptor that it gets as its socket."""
        if number is None:
            self.number += 1
            number = self.number
        shared = Window(window if WINDOW_BYTES <= window < 1 << 32 and not window % PAGE else WINDOW_BYTES)
        self.windows.append(shared)
        stream = memfd("stream", PAGE)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arbiter = theirs.fileno() if arbiter is None else arbiter
        descriptors = (shared.descriptor, self.lease_descriptor, stream, arbiter)
        sequence = self.send(START, child=number, descriptors=descriptors, window=window, memory=memory)
        theirs.close()
        child = Child(number, shared, Words(mmap.mmap(stream, PAGE)), ours)
        os.close(stream)
        return child, self.answer(sequence)

    def kill(self, child: int, *, reason: str = "") -> Message:
        return self.answer(self.send(KILL, child=child, reason=reason))

    def freeze(self) -> Message:
        return self.answer(self.send(FREEZE))

    def thaw(self) -> Message:
        return self.answer(self.send(THAW))

    def set_lease(self, number: int, state: int, *, expires_ns: int = FOREVER) -> None:
        """Write the lease page like an arbiter does, and wake the child."""
        self.lease.wholes[3] = time.monotonic_ns()
        self.lease.wholes[4] = expires_ns
        self.lease.wholes[2] = number << 2 | state
        self.lease.wake(8)

    def reset(self) -> None:
        self.lease.wholes[5] += 1
        self.lease.wake(8)

    def pid_of(self, child: int) -> int:
        """The child's process id, from the log."""
        wanted = f"child={child} event=started child_pid="
        for line in self.log.read_text().splitlines():
            if wanted in line:
                return int(line.split("pid=")[1].split()[0])
        raise AssertionError(f"no {wanted!r} in the log")

    def processes(self) -> list[int]:
        """Processes of children, compilers and the janitor."""
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def cgroup(self) -> Path | None:
        """The supervisor's cgroup, from the log."""
        word = self.ready().split("cgroup=")[1].split()[0]
        return None if word == "none" else Path(word)

    def ready(self) -> str:
        """The line that the supervisor logs when it is ready. It answers requests only after this line."""
        self.thaw()
        return next(line for line in self.log.read_text().splitlines() if "event=ready" in line)


@contextmanager
def run_slice(
    tmp_path: Path, *options: str, child: Path = BUILT / "vgpu-child", machine: tuple[str, ...] = ()
) -> Iterator[Slice]:
    """Run a supervisor until the end of the block. `machine`: a command that removes what other machines lack."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = tmp_path / f"supervisor-{ours.fileno()}.log"
    command = [*machine, BUILT / "vgpu-supervisor", "--tenant", "blue", "--child", child]
    words = [str(word) for word in (*command, *options)]
    if "--backend" not in words:
        words += ["--backend", "sleep"]
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{theirs.fileno()} {theirs.fileno()}<&-; exec "$@"', "bash", *words],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    theirs.close()
    descriptor = memfd("lease", PAGE)
    lease = Words(mmap.mmap(descriptor, PAGE))
    struct.pack_into("=II", lease.memory, 0, LEASE_MAGIC, 1)
    slice_ = Slice(process, ours, log, lease, descriptor)
    try:
        yield slice_
    finally:
        ours.close()
        for descriptor in (slice_.lease_descriptor, *(window.descriptor for window in slice_.windows)):
            os.close(descriptor)
        try:
            process.wait(LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll for a condition that has no event."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(0.001)


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is not a child of this one."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(pid):
            assert select.select([descriptor], [], [], LIMIT_S)[0], f"process {pid} lives on"
    finally:
        os.close(descriptor)


def wait_until_removed(path: Path) -> None:
    """Wait for the removal of a cgroup by polling, because it has no event."""
    wait_for(lambda: not path.exists(), f"the end of {path}")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


# from hostile_child.c
CALL, SPIN, HANG, HOSTILE_COMPILE, CRASH, FORK = range(1, 7)
HOSTILE = struct.Struct("=IHHQQ6QQQ512s")


def make_hostile_child(directory: Path) -> Path:
    """Build the child of hostile_child.c."""
    output = directory / "hostile-child"
    objects = [str(path) for path in child_objects()]
    source = ROOT / "tests" / "compute" / "hostile_child.c"
    command = ["gcc", *FLAGS, f"-I{COMPUTE}", f"-I{ROOT / 'kmod'}", "-o", str(output), str(source), *objects]
    subprocess.run(command, check=True)
    # If the supervisor is root, the child runs as user nobody.
    output.chmod(0o755)
    return output


def tell(window: Window, op: int, *, number: int = 0, times: int = 1, text: bytes = b"", **more: object) -> int:
    """Send a request to a hostile child. Arguments that are bytes are passed by address."""
    arguments: list[int] = []
    pointers = 0
    for index, argument in enumerate(more.get("arguments", ())):  # type: ignore[arg-type, var-annotated]
        if isinstance(argument, bytes):
            pointers |= 1 << index
            arguments.append(len(text))
            text += argument + b"\0" * (8 - len(argument) % 8)
        else:
            arguments.append(argument & FOREVER)
    arguments += [0] * (6 - len(arguments))
    window.call += 1
    window.put_raw(HOSTILE.pack(HOSTILE.size, op, 0, window.call, number, *arguments, pointers, times, text))
    return window.call


def call(window: Window, number: int, *arguments: int | bytes, times: int = 1) -> int:
    """Make a system call in the child and return the kernel's result. An error is negative."""
    tell(window, CALL, number=number, times=times, arguments=arguments)
    return int(struct.unpack_from("=q", window.reply().data)[0])
