# SPDX-License-Identifier: Apache-2.0
"""What the tests of the gate on NVIDIA's driver share: a supervisor whose children compute on the fake driver.

A child makes real ioctl() calls on a real descriptor. The kernel stops each call, and the child's relay answers it.
Relay and supervisor have the fake driver loaded, in place of the real one of a machine with a GPU.
"""

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.compute.executor_rig import FLAGS, ROOT, Slice, Window, build, child_objects, run_slice
from tests.gpu.fakerm.build import device_library
from tests.gpu.fakerm.client import FakeClient
from tests.gpu.fakerm.fake import FakeRm

NATIVE = ROOT / "vgpumgr" / "gpu" / "native"
FAKE = ROOT / "tests" / "gpu" / "fakerm"
DRIVER, OTHER = 100, 101

# from c/driver_child.c
CALL, RACE, HANDLES, CLOSE, FOREIGN, HOG = range(1, 7)
I386, X32 = range(2)
BYTES = 10240
REQUEST = struct.Struct(f"=IHHQII4IIIQ{BYTES}s")
REPLY = struct.Struct(f"=IHHQq2Q{BYTES}s")

# from vgpumgr/gpu/native/rm_abi.h, with the driver's values
FREE, CONTROL, ALLOC, DUP, CHECK_VERSION, XFER = 0x29, 0x2A, 0x2B, 0x34, 210, 211
OK, NO_ROOM, NOT_PERMITTED, NO_CLASS, NO_CLIENT, NO_PARENT, NO_SUCH = 0, 0x1A, 0x1B, 0x22, 0x23, 0x36, 0x56
ROOT_CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F
SCHEDULE, SET_TIMESLICE, DISABLE, NAME = 0xA06C0101, 0xA06C0103, 0x2080110B, 0x20800110
PARAMETERS_AT = 64


def number(escape: int, size: int, *, letter: str = "F") -> int:
    """Return the request number of a driver's ioctl()."""
    return 3 << 30 | size << 16 | ord(letter) << 8 | escape


@dataclass(frozen=True)
class Answer:
    """The outcome of an ioctl(): its result or a negative errno value, and the bytes after the call."""

    result: int
    data: bytes
    ok: int = 0
    refused: int = 0

    def word(self, at: int) -> int:
        return int(struct.unpack_from("=I", self.data, at)[0])


@dataclass(frozen=True)
class Context:
    """Handles of the objects that a child makes at its start."""

    client: int
    device: int
    subdevice: int
    group: int
    channel: int


class DriverChild:
    """A child that makes calls on instruction."""

    def __init__(self, window: Window) -> None:
        self.window = window
        answer = self._tell(HANDLES, 0, b"")
        self.context = Context(*struct.unpack_from("=5I", answer.data))

    def _tell(
        self, op: int, request: int, data: bytes, *, pointers: tuple[int, ...] = (), file: int = DRIVER, **race: int
    ) -> Answer:
        self._put(op, request, data, pointers=pointers, file=file, **race)
        # The data of a reply does not include its header.
        *_, result, ok, refused, changed = REPLY.unpack(bytes(16) + self.window.reply().data)
        return Answer(result, changed, ok, refused)

    def _put(
        self, op: int, request: int, data: bytes, *, pointers: tuple[int, ...] = (), file: int = DRIVER, **race: int
    ) -> None:
        window = self.window
        window.call += 1
        where = (*pointers, 0, 0, 0, 0)[:4]
        fixed = (REQUEST.size, op, 0, window.call, request, file, *where, race.get("at", 0), race.get("other", 0))
        window.put_raw(REQUEST.pack(*fixed, race.get("times", 1), data))

    def close(self, file: int) -> None:
        assert self._tell(CLOSE, 0, b"", file=file).result == 0

    def begin_foreign_ioctl(self, architecture: int, request: int) -> None:
        """Make an ioctl() with a system call of another architecture. The child may be dead before it answers."""
        self._put(FOREIGN, request, b"", other=architecture)

    def hog(self) -> None:
        """Make the child want a lease and never give one back."""
        self._tell(HOG, 0, b"")

    def ioctl(self, request: int, data: bytes = b"", *, pointers: tuple[int, ...] = (), file: int = DRIVER) -> Answer:
        return self._tell(CALL, request, data, pointers=pointers, file=file)

    def ioctl_nowhere(self, request: int) -> Answer:
        """Make an ioctl() whose argument is an invalid address."""
        return self._tell(CALL, request, b"", other=1)

    def control(
        self, target: int, command: int, parameters: bytes = b"", *, client: int | None = None, flags: int = 0
    ) -> Answer:
        """Make one control call. `word(28)` is its status."""
        header = self._control(target, command, parameters, client, flags)
        return self.ioctl(number(CONTROL, 32), header + parameters, pointers=(16,))

    def race(self, target: int, command: int, other: int, parameters: bytes, *, times: int) -> Answer:
        """Make a control call many times while a thread changes its command to another one and back."""
        header = self._control(target, command, parameters, None, 0)
        return self._tell(
            RACE, number(CONTROL, 32), header + parameters, pointers=(16,), at=8, other=other, times=times
        )

    def _control(self, target: int, command: int, parameters: bytes, client: int | None, flags: int) -> bytes:
        owner = self.context.client if client is None else client
        where = PARAMETERS_AT if parameters else 0
        # An offset of 0 also becomes an address, because the driver ignores the address if the size is 0.
        header = struct.pack("=4IQ2I", owner, target, command, flags, where, len(parameters), 0xFFFFFFFF)
        return header.ljust(PARAMETERS_AT, b"\0")

    def alloc(
        self,
        parent: int,
        class_id: int,
        parameters: bytes = b"",
        *,
        handle: int = 0,
        client: int | None = None,
        file: int = DRIVER,
    ) -> Answer:
        """Allocate an object. `word(8)` is its handle and `word(40)` its status."""
        owner = self.context.client if client is None else client
        header = struct.pack(
            "=4IQQ4I", owner, parent, handle, class_id, PARAMETERS_AT, 0, len(parameters), 0, 0xFFFFFFFF, 0
        )
        data = header.ljust(PARAMETERS_AT, b"\0") + parameters
        return self.ioctl(number(ALLOC, 48), data, pointers=(16,), file=file)

    def group(self, engine: int = 1) -> int:
        """Make a channel group on an engine."""
        answer = self.alloc(self.context.device, GROUP, struct.pack("=IIIIB3x", 0, 0, 0, engine, 0))
        assert (answer.result, answer.word(40)) == (0, OK)
        return answer.word(8)

    def channel(self, group: int) -> int:
        answer = self.alloc(group, CHANNEL, bytes(368))
        assert (answer.result, answer.word(40)) == (0, OK)
        return answer.word(8)

    def second_context(self) -> Context:
        """Make a second client with its own channel group, on another file."""
        client = self.alloc(0, ROOT_CLIENT, file=OTHER).word(8)
        device = self.alloc(client, DEVICE, bytes(56), client=client, file=OTHER).word(8)
        subdevice = self.alloc(device, SUBDEVICE, bytes(4), client=client, file=OTHER).word(8)
        parameters = struct.pack("=IIIIB3x", 0, 0, 0, 1, 0)
        group = self.alloc(device, GROUP, parameters, client=client, file=OTHER).word(8)
        channel = self.alloc(group, CHANNEL, bytes(368), client=client, file=OTHER)
        assert (channel.result, channel.word(40)) == (0, OK)
        return Context(client, device, subdevice, group, channel.word(8))

    def free(self, handle: int, *, client: int | None = None) -> Answer:
        """Free an object. `word(12)` is the status."""
        owner = self.context.client if client is None else client
        return self.ioctl(number(FREE, 16), struct.pack("=4I", owner, 0, handle, 0xFFFFFFFF))


def make_driver_child(directory: Path) -> Path:
    """Build the child of driver_child.c."""
    source = ROOT / "tests" / "compute" / "c" / "driver_child.c"
    output = build(directory / "driver-child", source, *child_objects(), flags=(f"-I{NATIVE}", f"-I{FAKE}", *FLAGS[:1]))
    output.chmod(0o755)
    return output


@dataclass
class Gpu:
    """The fake driver with its GPU, and a process on it that advances the time."""

    fake: FakeRm
    version: str

    @property
    def library(self) -> Path:
        """The file that children load as the accelerator's library. It says where the driver is, and its version."""
        return self.fake.directory / self.version

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that uses the driver."""
        return {"LD_PRELOAD": str(device_library()), "FAKERM_SOCKET": str(self.fake.directory / "socket")}

    @contextmanager
    def observer(self) -> Iterator[FakeClient]:
        with FakeClient(self.fake.directory) as client:
            client.join()
            yield client


@contextmanager
def run_gpu(version: str = "580.142", **options: object) -> Iterator[Gpu]:
    """Run a fake GPU. Its folder is not below /tmp, because a child's sandbox has a /tmp of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="fakerm-", dir="/var/tmp") as folder,
        FakeRm(version=version, directory=Path(folder), **options) as fake,  # type: ignore[arg-type]
    ):
        Path(folder).chmod(0o755)
        (fake.directory / "socket").chmod(0o777)
        (fake.directory / version).touch()
        yield Gpu(fake, version)


@contextmanager
def run_driver_slice(
    tmp_path: Path, gpu: Gpu, child: Path, *options: str, user: tuple[str, ...] = ()
) -> Iterator[Slice]:
    """Run a supervisor whose children compute on that GPU. `user`: a command prefix that switches to another user."""
    loaded = (*user, "env", *(f"{name}={value}" for name, value in gpu.environment.items()))
    words = ("--backend", "driver", "--library", str(gpu.library), "--nvidia", "0")
    lock = ("--gate-lock", str(tmp_path / "gate.lock"))
    with run_slice(tmp_path, *words, *lock, *options, child=child, machine=loaded) as slice_:
        yield slice_
