# SPDX-License-Identifier: Apache-2.0
"""Random messages to the netlink family: a documented errno or success; a refused message has changed nothing."""

import errno
import itertools
import os
import random
import socket
import struct
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import pytest

from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.settings import settings
from vgpumgr.control import protocol, wire
from vgpumgr.control.protocol import Command, GpuAttribute, SliceAttribute, TenantAttribute

# The errnos of kmod/uapi/vgpumgr.yaml, and those of netlink itself.
DOCUMENTED = {
    *("EINVAL", "ERANGE", "ENODEV", "ENOENT", "EBUSY", "ESTALE", "EOPNOTSUPP", "EPERM", "ENOSPC"),
    *("EEXIST", "ENXIO", "EAGAIN"),  # of gpu-adopt
}
SETTERS = {
    Command.GPU_ADOPT,
    Command.GPU_RELEASE,
    Command.GPU_SET,
    Command.TENANT_SET,
    Command.TENANT_DEL,
    Command.SLICE_SET,
}
UNPRIVILEGED = 65534
NUMBERS = [0, 1, 2, 99, 100, 1000, 10000, 10001, 10**6, 2**31, 2**32 - 1]
ABSENT = ["0000:00:11.0", "green", "11111111-0000-4000-8000-000000000001"]

# Attributes that a request must carry, with one that it may change; then those that it may carry.
_GPU = [GpuAttribute.NAME]
_TENANT = [TenantAttribute.GPU, TenantAttribute.TENANT]
_SLICE = [SliceAttribute.UUID]
REQUIRED: dict[Command, list[IntEnum]] = {
    Command.GPU_GET: [*_GPU],
    Command.GPU_SET: [*_GPU, GpuAttribute.MAX_CHUNK_US],
    Command.GPU_ADOPT: [*_GPU],
    Command.GPU_RELEASE: [*_GPU],
    Command.TENANT_GET: [*_TENANT],
    Command.TENANT_SET: [*_TENANT, TenantAttribute.WEIGHT, TenantAttribute.TIMESLICE_US],
    Command.TENANT_DEL: [*_TENANT],
    Command.SLICE_GET: [*_SLICE],
    Command.SLICE_SET: [*_SLICE, SliceAttribute.WEIGHT],
}
OPTIONAL: dict[Command, list[IntEnum]] = {
    Command.GPU_ADOPT: [GpuAttribute.ATTACH],
    Command.GPU_SET: [
        GpuAttribute.POLICY,
        GpuAttribute.PLACES,
        GpuAttribute.RESERVE_LIMIT_PERMILLE,
        GpuAttribute.IF_GENERATION,
    ],
    Command.TENANT_SET: [
        TenantAttribute.CAP_US,
        TenantAttribute.CAP_PERIOD_US,
        TenantAttribute.BURST_US,
        TenantAttribute.IF_GENERATION,
        TenantAttribute.MODE,
        TenantAttribute.BAND,
        TenantAttribute.RESERVE_US,
        TenantAttribute.RESERVE_PERIOD_US,
        TenantAttribute.HOLD_MAX_US,
        TenantAttribute.INVERSION_PERMILLE,
        TenantAttribute.INVERSION_BURST_US,
    ],
    Command.SLICE_GET: [SliceAttribute.GPU],
    Command.SLICE_SET: [
        SliceAttribute.TENANT,
        SliceAttribute.CAP_US,
        SliceAttribute.CAP_PERIOD_US,
        SliceAttribute.BURST_US,
    ],
}


def name_of(status: int) -> str:
    if status == errno.EOPNOTSUPP:  # has two names
        return "EOPNOTSUPP"
    return errno.errorcode.get(status, str(status)) if status else "done"


class Speaker:
    """A netlink socket that sends any bytes and reads the answers."""

    def __init__(self, family: int, *, uuid: str, seed: int) -> None:
        self.family = family
        self.chance = random.Random(seed)
        self.sequence = 1 << 20
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self.socket.bind((0, 0))
        self.socket.settimeout(20)
        self.words = {"gpu": [ADDRESS], "name": [ADDRESS], "tenant": ["blue", "red"], "uuid": [uuid]}

    def anything(self) -> tuple[int, int]:
        """Send one request; returns its command and its errno."""
        chance = self.chance
        command = int(chance.choice(list(REQUIRED)))
        attributes = self.nearly_good(Command(command))
        if chance.random() < 0.3:
            attributes = self.wild(Command(command))
        if chance.random() < 0.05:
            command = chance.randrange(256)
        dump = chance.random() < 0.1
        return command, self.say(command=command, flags=wire.DUMP if dump else wire.ACK, attributes=attributes)

    def nearly_good(self, command: Command) -> bytes:
        """All required attributes and a few more; half of the time one value is odd."""
        chance = self.chance
        known = protocol.ATTRIBUTES[command]
        more = OPTIONAL.get(command, [])
        present = REQUIRED[command] + chance.sample(more, min(len(more), chance.choice([0, 0, 1, 2, 4])))
        odd = chance.randrange(2 * len(present))
        return b"".join(
            wire.encode_attribute(
                attribute,
                self.payload(known.type_of(attribute), attribute.name.lower(), odd=number == odd),
            )
            for number, attribute in enumerate(present)
        )

    def wild(self, command: Command) -> bytes:
        """Attributes of any kind, number, order and length."""
        chance = self.chance
        known = protocol.ATTRIBUTES[command]
        parts = []
        for attribute in chance.sample(list(known.numbers), chance.randrange(len(known.numbers))):
            number = int(attribute) if chance.random() < 0.97 else chance.randrange(1 << 14)
            if chance.random() < 0.03:
                number |= chance.choice([0x8000, 0x4000])
            payload = self.payload(known.type_of(attribute), attribute.name.lower(), odd=chance.random() < 0.3)
            parts.append(wire.encode_attribute(number, payload))
        data = b"".join(parts)
        if data and chance.random() < 0.1:  # a false length
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(1) + data[at + 1 :]
        return data

    def payload(self, kind: str, name: str, *, odd: bool) -> bytes:
        chance = self.chance
        if odd and chance.random() < 0.4:
            return chance.randbytes(chance.choice([0, 1, 3, 4, 7, 8, 16, 63, 64, 65, 300]))
        if kind == "string":
            if not odd:
                return chance.choice(self.words.get(name, ["red"])).encode() + b"\0"
            if chance.random() < 0.5:
                return chance.choice(ABSENT).encode() + b"\0"
            return chance.randbytes(chance.randrange(80)) + b"\0" * chance.randrange(2)
        number = chance.choice([*NUMBERS, chance.randrange(2**32)]) if odd else chance.choice([0, 1, 500, 1000])
        return number.to_bytes(8 if kind in ("u64", "s64") else 4, "little")

    def say(self, *, command: int, flags: int, attributes: bytes) -> int:
        """The errno the kernel answers with, 0 for success."""
        self.sequence += 1
        version = self.chance.choice([protocol.FAMILY_VERSION, self.chance.randrange(256)])
        self.socket.send(wire.encode_request(self.family, flags, self.sequence, command, version, attributes))
        while True:
            for message in wire.decode_messages(self.socket.recv(1 << 17)):
                if message.sequence == self.sequence and message.type in (wire.ERROR, wire.DONE):
                    (status,) = struct.unpack_from("=i", message.body)
                    return int(-status)


@contextmanager
def speaker(gpu: Gpu, *, seed: int) -> Iterator[Speaker]:
    """One object of each kind that a request may name."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    made = Speaker(gpu.control._family, uuid=gpu.slice("blue"), seed=seed)
    try:
        yield made
    finally:
        made.socket.close()


def say_anything(gpu: Gpu, *, requests: int, seed: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    with speaker(gpu, seed=seed) as speaks:
        before: Any = settings(gpu.control, gpu.sysfs)
        for _ in range(requests):
            command, status = speaks.anything()
            now = settings(gpu.control, gpu.sysfs)
            name = name_of(status)
            assert not status or now == before, f"command {command} was refused with {name} and has changed something"
            if now != before:
                seen["changed"] += 1
            before = now
            seen[name] += 1
    return seen


def check(seen: Counter[str]) -> None:
    assert not set(seen) - DOCUMENTED - {"done", "changed"}, seen
    assert min(seen[name] for name in ("done", "changed", "EINVAL", "ERANGE", "ENODEV", "ENOENT", "EOPNOTSUPP")) > 0, (
        seen
    )


def test_any_request_is_answered_as_documented(gpu: Gpu) -> None:
    check(say_anything(gpu, requests=300, seed=1))


@pytest.mark.long
def test_very_many_requests_are_answered_as_documented(gpu: Gpu, fuzz_s: float) -> None:
    seen: Counter[str] = Counter()
    end = time.monotonic() + fuzz_s / 10
    for seed in itertools.count(2):
        seen += say_anything(gpu, requests=500, seed=seed)
        gpu.clear()
        if time.monotonic() > end:
            break
    check(seen)


def speak_unprivileged(family: int, uuid: str) -> None:
    """Runs in its own process. AssertionError when a setter got further than its privileges allow."""
    os.setgroups([])
    os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    speaks = Speaker(family, uuid=uuid, seed=9)
    seen: Counter[tuple[bool, str]] = Counter()
    for _ in range(400):
        command, status = speaks.anything()
        setter, name = command in SETTERS, name_of(status)
        assert name in DOCUMENTED | {"done"}, (command, name)
        assert not setter or name in ("EPERM", "EOPNOTSUPP"), (command, name)
        seen[setter, name] += 1
    assert min(seen[True, "EPERM"], seen[False, "done"]) > 20, seen


def test_nobody_without_privilege_changes_anything(gpu: Gpu) -> None:
    """The same in a process without root: requests to read are answered, requests to set are not even parsed."""
    with speaker(gpu, seed=0) as speaks:
        family, uuid = speaks.family, speaks.words["uuid"][0]
    before = settings(gpu.control, gpu.sysfs)
    child = os.fork()
    if not child:
        try:
            speak_unprivileged(family, uuid)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert settings(gpu.control, gpu.sysfs) == before
