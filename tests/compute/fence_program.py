# SPDX-License-Identifier: Apache-2.0
"""A native program that attacks its fence: native_program.py with additional instructions.

It uses only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
import time

from native_program import Driver, obey  # type: ignore[import-not-found]

MIB = 1 << 20
CONTROL, HEAP = 0x2A, 0x4A
GET_TIMESLICE, PREEMPT = 0xA06C0104, 0xA06C0105
SUBDEVICE = 0x2080


class Trier(Driver):  # type: ignore[misc]
    """A driver's file with additional calls."""

    def begin(self) -> None:
        super().begin()
        self.group = self.make(self.device, 0xA06C, struct.pack("=IIIIB3x", 0, 0, 0, 1, 0))

    def ask(self) -> int:
        """Ask the driver a question."""
        parameters = ctypes.create_string_buffer(8)
        data = struct.pack(
            "=4IQ2I", self.client, self.group, GET_TIMESLICE, 0, ctypes.addressof(parameters), 8, 0xFFFFFFFF
        )
        self.ioctl(CONTROL, bytearray(data))
        return 0

    def ask_often(self, times: int) -> float:
        """Return the microseconds that one question takes."""
        began_s = time.perf_counter()
        for _ in range(times):
            self.ask()
        return (time.perf_counter() - began_s) / times * 1e6

    def race(self, times: int) -> str:
        """Ask a question that a thread changes into an order and back while the fence checks it."""
        parameters = ctypes.create_string_buffer(8)
        data = bytearray(
            struct.pack("=4IQ2I", self.client, self.group, GET_TIMESLICE, 0, ctypes.addressof(parameters), 8, 0xFF)
        )
        command = ctypes.c_uint32.from_buffer(data, 8)
        ends = threading.Event()

        def change() -> None:
            while not ends.is_set():
                command.value = PREEMPT
                command.value = GET_TIMESLICE

        changer = threading.Thread(target=change)
        changer.start()
        found = []
        for _ in range(times):
            self.ioctl(CONTROL, data)
            found.append(struct.unpack_from("=I", data, 28)[0])
        ends.set()
        changer.join()
        return f"{found.count(0)} {found.count(0x1B)}"

    def heap(self, function: int, size: int = 0, handle: int = 0) -> int:
        """Make or free memory with NVOS32, and return the handle of the new object."""
        data = bytearray(184)
        struct.pack_into("=III", data, 0, self.client, self.device, function)
        struct.pack_into("=I", data, 44, handle)
        struct.pack_into("=Q", data, 88, size)
        self.ioctl(HEAP, data)
        self.check(struct.unpack_from("=I", data, 20)[0])
        return int(struct.unpack_from("=I", data, 44)[0])


def storm(path: str, version: str, processes: int, size: int) -> str:
    """Start processes one after the other. Each allocates memory and does not free it."""
    statuses = []
    for _ in range(processes):
        child = os.fork()
        if not child:
            try:
                driver = Trier(path, version)
                driver.begin()
                driver.allocate(size)
                os._exit(0)
            except RuntimeError:
                os._exit(1)
        statuses.append(os.waitpid(child, 0)[1])
    return f"{statuses.count(0)}"


def crowd(path: str, version: str, threads: int, times: int) -> str:
    """Start threads at the same time, each with its own context."""
    done: list[int] = []

    def work() -> None:
        driver = Trier(path, version)
        driver.begin()
        for _ in range(times):
            driver.ask()
        driver.free(driver.client)
        done.append(1)

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return str(len(done))


def hand_over(driver: Trier, path: str) -> None:
    """Send the driver's file to the process that listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.connect(path)
        socket.send_fds(listener, [b"x"], [driver.file.fileno()])


def answer(driver: Trier, words: list[str]) -> object:
    """Carry out one line of instructions."""
    match words:
        case ["ask"]:
            return driver.ask()
        case ["ask_often", times]:
            return driver.ask_often(int(times))
        case ["race", times]:
            return driver.race(int(times))
        case ["heap", function, *rest]:
            return driver.heap(int(function), *map(int, rest))
        case ["storm", processes, size]:
            return storm(sys.argv[1], sys.argv[2], int(processes), int(size))
        case ["crowd", threads, times]:
            return crowd(sys.argv[1], sys.argv[2], int(threads), int(times))
        case ["hand_over", path]:
            return hand_over(driver, path)
        case ["maker_process"]:
            child = os.fork()
            if not child:
                driver.make(driver.device, SUBDEVICE, bytes(4))
                os._exit(0)
            return child
        case ["close"]:
            return driver.file.close()
        case ["leave"]:
            # The process that continues is another one, which has inherited the file.
            if os.fork():
                os._exit(0)
            return os.getpid()
        case ["group"]:
            return driver.group
        case ["free_client"]:
            return driver.free(driver.client)
        case ["allocate_below", parent, size]:
            driver.device = int(parent)
            return driver.allocate(int(size))
        case ["maker"]:
            threading.Thread(target=lambda: driver.make(driver.device, SUBDEVICE, bytes(4))).start()
            return None
        case _:
            return obey(driver, words)


def main() -> None:
    driver = Trier(sys.argv[1], sys.argv[2])
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        try:
            print("ok", answer(driver, line.split()), flush=True)
        except (OSError, RuntimeError, ValueError) as error:
            print("failed", error, flush=True)


if __name__ == "__main__":
    main()
