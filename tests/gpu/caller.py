# SPDX-License-Identifier: Apache-2.0
"""A program that calls the driver directly, in ways that no sane tenant would: `python -m tests.gpu.caller CASE
[ARGUMENT]`.

Runs with the fake driver loaded, with or without the shim before it, and prints what it saw as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)

FREE, CONTROL, ALLOC, CHECK_VERSION, XFER = 0x29, 0x2A, 0x2B, 210, 211
ROOT_CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F
SET_TIMESLICE, GET_TIMESLICE = 0xA06C0103, 0xA06C0104
SET_PREEMPTION, PREEMPTION_BIND = 0x20801210, 0x20801211
GR0, COPY0 = 1, 9
PARAMS = {DEVICE: bytes(56), SUBDEVICE: bytes(4), CHANNEL: bytes(368)}


def request(escape: int, size: int) -> int:
    return 3 << 30 | size << 16 | ord("F") << 8 | escape


def ioctl(fd: int, escape: int, size: int, address: int, *, envelope: bool = False) -> tuple[int, int]:
    """Make a call and return its result and errno. Success leaves errno unchanged."""
    if envelope:
        outer = ctypes.create_string_buffer(struct.pack("=IIQ", escape, size, address))
        escape, size, address = XFER, 16, ctypes.addressof(outer)
    ctypes.set_errno(77)
    result = LIBC.ioctl(fd, request(escape, size), address)
    return result, ctypes.get_errno()


class Driver:
    """An open device file with a client and a device on it."""

    def __init__(self, *, version: str | None = None) -> None:
        self.fd = os.open("/dev/nvidiactl", os.O_RDWR)
        text = (version or os.environ["FAKERM_CUDA_VERSION"]).encode()
        check = ctypes.create_string_buffer(struct.pack("=II64s", 0, 0, text), 72)
        self.checked = ioctl(self.fd, CHECK_VERSION, 72, ctypes.addressof(check))
        self.handles = iter(range(0x5C000001, 0x5D000000))
        self.client = 0
        self.client = self.alloc(0, ROOT_CLIENT, b"")
        self.device = self.alloc(self.client, DEVICE)
        self.subdevice = self.alloc(self.device, SUBDEVICE)

    def alloc(self, parent: int, class_id: int, params: bytes | None = None, *, envelope: bool = False) -> int:
        data = PARAMS[class_id] if params is None else params
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        wanted = 0 if class_id == ROOT_CLIENT else next(self.handles)
        pointer = ctypes.addressof(buffer) if data else 0
        call = ctypes.create_string_buffer(
            struct.pack("=IIIIQQIIII", self.client, parent, wanted, class_id, pointer, 0, len(data), 0, 0, 0), 48
        )
        result, _ = ioctl(self.fd, ALLOC, 48, ctypes.addressof(call), envelope=envelope)
        status = struct.unpack_from("=I", call, 40)[0]
        return struct.unpack_from("=I", call, 8)[0] if result == 0 and status == 0 else 0

    def group(self, engine: int = GR0, *, envelope: bool = False) -> int:
        return self.alloc(self.device, GROUP, struct.pack("=IIIIB3x", 0, 0, 0, engine, 0), envelope=envelope)

    def control(self, target: int, cmd: int, params: bytes, **options: Any) -> dict[str, Any]:
        buffer = ctypes.create_string_buffer(params, max(len(params), 1))
        return self.raw_control(target, cmd, ctypes.addressof(buffer), len(params), **options) | {
            "params": buffer.raw.hex()
        }

    def raw_control(self, target: int, cmd: int, address: int, size: int, *, envelope: bool = False) -> dict[str, Any]:
        call = ctypes.create_string_buffer(
            struct.pack("=IIIIQII", self.client, target, cmd, 0, address, size, 0xEEEEEEEE), 32
        )
        result, error = ioctl(self.fd, CONTROL, 32, ctypes.addressof(call), envelope=envelope)
        fields = struct.unpack("=IIIIQII", call.raw)
        return {"result": result, "errno": error, "status": fields[6], "pointer_kept": fields[4] == address}

    def free(self, handle: int) -> int:
        call = ctypes.create_string_buffer(struct.pack("=IIII", self.client, 0, handle, 0xEE), 16)
        ioctl(self.fd, FREE, 16, ctypes.addressof(call))
        return int(struct.unpack_from("=I", call, 12)[0])

    def set_timeslice(self, group: int, timeslice_us: int, **options: Any) -> dict[str, Any]:
        return self.control(group, SET_TIMESLICE, struct.pack("=Q", timeslice_us), **options)

    def timeslice_us(self, group: int) -> int:
        return int.from_bytes(bytes.fromhex(self.control(group, GET_TIMESLICE, bytes(8))["params"]), "little")


def page(protection: int) -> int:
    """Return the address of a page whose next page is not mapped."""
    address = LIBC.mmap(None, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0)
    LIBC.mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0)
    LIBC.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, protection)
    return int(address)


def timeslices() -> Any:
    """Report timeslices of a compute group and a copy group, when made and after the tenant's own setting."""
    driver, seen = Driver(), []
    for envelope in (False, True):
        for engine in (GR0, COPY0):
            group = driver.group(engine, envelope=envelope)
            made_us = driver.timeslice_us(group)
            answer = driver.set_timeslice(group, 2048, envelope=envelope)
            seen.append({"engine": engine, "made_us": made_us, "answer": answer, "us": driver.timeslice_us(group)})
    return seen


def sizes() -> Any:
    """Set parameters of a wrong size."""
    driver = Driver()
    group = driver.group()
    answers = [driver.control(group, SET_TIMESLICE, bytes([7] * size))["status"] for size in (0, 4, 7, 9, 16)]
    buffer = ctypes.create_string_buffer(8)
    answers.append(driver.raw_control(group, SET_TIMESLICE, ctypes.addressof(buffer), 0xFFFFFFFF)["status"])
    return {"statuses": answers, "us": driver.timeslice_us(group)}


def pointers() -> Any:
    """Use calls, parameters and envelopes at addresses that are invalid, reach an unmapped page, or are read-only."""
    driver = Driver()
    group = driver.group()
    full, readable = page(mmap.PROT_READ | mmap.PROT_WRITE), page(mmap.PROT_READ)
    ends = [full + mmap.PAGESIZE - size for size in (1, 8, 16, 24, 31)]
    bad = [0, 1, 0x1000, 0xFFFF800000000000, 0xFFFFFFFFFFFFFFFF, *ends]
    outcomes: list[Any] = []
    for address in bad:
        for escape, size in ((CONTROL, 32), (ALLOC, 32), (ALLOC, 48), (FREE, 16), (CHECK_VERSION, 72)):
            outcomes += [
                ioctl(driver.fd, escape, size, address + (size == 16 and address > full) * 0, envelope=envelope)[1]
                for envelope in (False, True)
                if not (full <= address < full + mmap.PAGESIZE - size + 1)
            ]
        outcomes.append(ioctl(driver.fd, XFER, 16, address if address not in ends[2:] else 0)[1])
    params = [driver.raw_control(group, SET_TIMESLICE, address, 8) for address in (0, 1, 0x1000, ends[0])]
    LIBC.mprotect(ctypes.c_void_p(readable), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    slice_us = struct.pack("=Q", 2048)
    ctypes.memmove(readable + 64, slice_us, 8)
    call = struct.pack("=IIIIQII", driver.client, group, SET_TIMESLICE, 0, readable + 64, 8, 0)
    ctypes.memmove(readable, call, 32)
    LIBC.mprotect(ctypes.c_void_p(readable), mmap.PAGESIZE, mmap.PROT_READ)
    return {
        "errnos": sorted(set(outcomes)),
        "statuses": [answer["status"] for answer in params],
        "read_only": ioctl(driver.fd, CONTROL, 32, readable),
        "unchanged": ctypes.string_at(readable, 32) == call and ctypes.string_at(readable + 64, 8) == slice_us,
    }


def random_calls() -> Any:
    """Make random calls with random contents, and report all answers. The same seed gives the same calls."""
    draw, driver = random.Random(int(sys.argv[2])), Driver()
    groups = [driver.group(engine) for engine in (GR0, COPY0, GR0)]
    channel = driver.alloc(groups[0], CHANNEL)
    known = [driver.client, driver.device, driver.subdevice, channel, *groups, 0, 0xFFFFFFFF]
    seen: list[Any] = []
    for _ in range(1500):
        escape = draw.choice((FREE, CONTROL, CONTROL, CONTROL, ALLOC, ALLOC, CHECK_VERSION, draw.randrange(256)))
        size = draw.choice({FREE: (16,), CONTROL: (32,), ALLOC: (32, 48)}.get(escape, (16, 32, 72)))
        if draw.random() < 0.1:
            size = draw.randrange(128)
        # Mix valid structures of the driver with random contents, so some calls pass the first checks.
        params = ctypes.create_string_buffer(draw.randbytes(400), 400)
        cmd = draw.choice((SET_TIMESLICE, SET_PREEMPTION, PREEMPTION_BIND, GET_TIMESLICE, draw.getrandbits(32)))
        class_id = draw.choice((GROUP, CHANNEL, SUBDEVICE, DEVICE, draw.getrandbits(16)))
        third = cmd if escape == CONTROL else draw.choice((0, draw.getrandbits(32)))
        fourth = class_id if escape == ALLOC else draw.getrandbits(32)
        pointer = draw.choice((ctypes.addressof(params), ctypes.addressof(params), 0, 0x1000))
        fitting = {SET_TIMESLICE: 8, GET_TIMESLICE: 8, SET_PREEMPTION: 32, PREEMPTION_BIND: 104}.get(third, 20)
        length = draw.choice((fitting, fitting, 0, 4, 8, 20, 32, 104, 368, draw.getrandbits(32)))
        if escape == ALLOC and size == 48:
            tail = struct.pack("=QQIII", pointer, 0, length, 0, 0)
        else:
            tail = struct.pack("=QII", pointer, length, 0)
        target = draw.choice(groups if third in (SET_TIMESLICE, GET_TIMESLICE) else known)
        head = struct.pack("=IIII", draw.choice((driver.client, driver.client, 0)), target, third, fourth)
        if escape == FREE and draw.random() < 0.9:
            head = struct.pack("=IIII", driver.client, 0, 0x5CFFFFFF, 0)
        call = ctypes.create_string_buffer((head + tail).ljust(128, b"\0"), 128)
        result, error = ioctl(driver.fd, escape, size, ctypes.addressof(call), envelope=draw.random() < 0.3)
        contents = bytearray(call.raw)
        # The address of a buffer differs between runs and is not part of an answer.
        contents[16:24] = bytes(8)
        seen.append((result, error, contents.hex(), params.raw.hex()))
    return {"calls": len(seen), "answers": seen}


def threads() -> Any:
    """Make, set and free groups on one file from many threads at once."""
    driver, wrong = Driver(), []

    def play(number: int) -> None:
        for _ in range(60):
            group = driver.group()
            answer = driver.set_timeslice(group, 1000 + number, envelope=number % 2 == 0)
            if answer["status"] != 0 or answer["result"] != 0 or driver.timeslice_us(group) != 6000:
                wrong.append(answer)
            driver.free(group)

    players = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    return {"wrong": wrong}


def forks() -> Any:
    """Fork: the child does not know its parent's groups and sets its own."""
    driver = Driver()
    group = driver.group()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = Driver()
        made = own.group()
        os.write(writer, json.dumps({"us": own.timeslice_us(made), "pid": os.getpid()}).encode())
        signal.pause()
    found = json.loads(os.read(reader, 4096))
    print(json.dumps({"child": found, "us": driver.timeslice_us(group)}), flush=True)
    sys.stdin.readline()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"us": driver.timeslice_us(group)}


def waits() -> Any:
    """Make groups, and report their timeslices after each line of input."""
    driver = Driver()
    groups = [driver.group(), driver.group()]
    for _ in range(3):
        print(json.dumps([driver.timeslice_us(group) for group in groups]), flush=True)
        if not sys.stdin.readline():
            break
        if len(groups) == 2:
            driver.free(groups.pop())
    driver.free(driver.device)
    print(json.dumps([]), flush=True)
    sys.stdin.readline()
    return {}


def preemption() -> Any:
    """Set WFI with both controls, then other preemption modes."""
    driver = Driver()
    channel = driver.alloc(driver.group(), CHANNEL)
    answers = {}
    for name, flags, mode in (("wfi", 1, 0), ("cilp", 1, 2), ("graphics only", 2, 0)):
        params = struct.pack("=IIIIIxxxxQ", flags, channel, 0, mode, 0, 0)
        # Branch 535 has 8 buffers, later branches have 9, and no branch has 10.
        binds = [struct.pack(f"=III4x{8 * n}xIII4xQ", flags, driver.client, channel, 0, mode, 0, 0) for n in (8, 9, 10)]
        for envelope in (False, True):
            calls = [(SET_PREEMPTION, params), *((PREEMPTION_BIND, bind) for bind in binds)]
            made = [(sent, driver.control(driver.subdevice, cmd, sent, envelope=envelope)) for cmd, sent in calls]
            answers[f"{name} {envelope}"] = [
                (answer["status"], answer["params"] == sent.hex(), answer["pointer_kept"]) for sent, answer in made
            ]
    return answers


def many_groups() -> Any:
    driver = Driver()
    return {"made": sum(1 for _ in range(300) if driver.group())}


def others() -> Any:
    """Make calls on files that are not the driver's."""
    reader, writer = os.pipe()
    os.write(writer, b"12345")
    count = ctypes.c_int()
    known = LIBC.ioctl(reader, 0x541B, ctypes.addressof(count))
    buffer = ctypes.create_string_buffer(64)
    refused = [ioctl(reader, escape, 32, ctypes.addressof(buffer))[1] for escape in (ALLOC, CONTROL, FREE)]
    closed = ioctl(9999, CONTROL, 32, ctypes.addressof(buffer))[1]
    return {"fionread": [known, count.value], "enotty": [error == errno.ENOTTY for error in refused], "closed": closed}


def full_log() -> Any:
    """Make calls while no file may grow. A write then raises a signal, which Python ignores by default."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    driver = Driver()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    return {"us": driver.timeslice_us(driver.group()), "pending": sorted(signal.sigpending())}


def reuses_listener() -> Any:
    """Replace the shim's listener by a pipe of this program, and fork."""
    driver = Driver()
    driver.group()
    listeners = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if is_listener(int(fd.name))]
    reader, writer = os.pipe()
    os.dup2(reader, listeners[0])
    answer_reader, answer_writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(answer_writer, os.read(listeners[0], 16))
        except OSError as error:
            os.write(answer_writer, os.strerror(error.errno).encode())
        os._exit(0)
    os.write(writer, b"tenant")
    os.waitpid(child, 0)
    return {"child_reads": os.read(answer_reader, 64).decode()}


def is_listener(fd: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(fd)) as found:
            return found.family == socket.AF_UNIX and bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


CASES: dict[str, Callable[[], Any]] = {
    case.__name__: case
    for case in (
        timeslices,
        sizes,
        pointers,
        random_calls,
        threads,
        forks,
        waits,
        preemption,
        many_groups,
        others,
        full_log,
        reuses_listener,
    )
}

if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()), flush=True)
