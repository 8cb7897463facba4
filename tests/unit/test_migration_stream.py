# SPDX-License-Identifier: Apache-2.0
"""The kernel's check of a migration stream's header, built for user space: it accepts only possible states."""

import ctypes
import errno
import random
import re
import subprocess
from pathlib import Path

import pytest

from tests.rig.migration import ENABLED, REPORTED, Header

ROOT = Path(__file__).resolve().parents[2]
MEMORY_BYTES = 16 << 20
ENGINE, OPERATIONS = b"soft".ljust(16, b"\0"), 0b1101
MAGIC, ABI_MAJOR, COMMAND, MASTER = 0x3147494D55504756, 1, 4, 4
DEVICE_HEADER = (ROOT / "kmod/uapi/vgpu_device.h").read_text()
ABI_MINOR = int(re.findall(r"^#define VGPU_ABI_MINOR\s+(\d+)", DEVICE_HEADER, re.M)[0])
ERRORS = len(re.findall(r"^\tVGPU_ERROR_\w+ = \d+,", DEVICE_HEADER, re.M))
CASES = 20_000
# values that a mutation writes: the limits of every width and their neighbours
EDGES = [
    0,
    1,
    7,
    8,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    2**31,
    2**32 - 64,
    2**32 - 1,
    2**63,
    2**64 - 4096,
    2**64 - 64,
    2**64 - 1,
]


class State(ctypes.Structure):
    """struct vgpu_migration_state"""

    _fields_ = (
        ("ring", ctypes.c_uint64),
        ("completion", ctypes.c_uint64),
        ("shadow", ctypes.c_uint64),
        ("entries", ctypes.c_uint32),
        ("run_ns", ctypes.c_uint64),
        ("run_ns_hi", ctypes.c_uint32),
        ("tail", ctypes.c_uint32),
        ("completed", ctypes.c_uint32),
        ("error", ctypes.c_uint32),
        ("error_index", ctypes.c_uint32),
        ("enabled", ctypes.c_bool),
        ("reported", ctypes.c_bool),
    )


class Target(ctypes.Structure):
    """struct vgpu_migration_target: a device with writable command register and interrupt line."""

    _fields_ = (
        ("memory_bytes", ctypes.c_uint64),
        ("engine", ctypes.c_char * 16),
        ("operations", ctypes.c_uint32),
        ("config", ctypes.c_uint8 * 256),
        ("config_writable", ctypes.c_uint8 * 256),
        ("msix", ctypes.c_uint8 * 32),
        ("msix_writable", ctypes.c_uint8 * 32),
    )


class Parser:
    def __init__(self, library: Path) -> None:
        code = ctypes.CDLL(str(library))
        self._parse, self._format = code.vgpu_migration_parse, code.vgpu_migration_format
        self._parse.restype = ctypes.c_int
        self.target = Target(memory_bytes=MEMORY_BYTES, engine=ENGINE, operations=OPERATIONS)
        self.target.config[0] = 0x34
        self.target.config_writable[COMMAND] = MASTER
        self.target.config_writable[0x3C] = 0xFF
        self.target.msix[12] = 1
        self.target.msix_writable[12] = 1

    def parse(self, data: bytes) -> tuple[int, str | None, State]:
        """Return the error, the field at fault, and the state, which is valid only without an error."""
        state, fault = State(), ctypes.c_char_p()
        # Use a heap block of exactly that size.
        block = ctypes.create_string_buffer(data, len(data))
        ret = self._parse(block, ctypes.byref(self.target), ctypes.byref(state), ctypes.byref(fault))
        return -ret, fault.value and fault.value.decode(), state

    def format(self, state: State, header: Header) -> bytes:
        data = ctypes.create_string_buffer(header.pack(), Header.BYTES)
        self._format(data, ctypes.byref(state), ctypes.byref(self.target))
        return data.raw


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Parser:
    library = tmp_path_factory.mktemp("migration") / "stream.so"
    sources = [ROOT / "kmod/migration/migration_stream.c", ROOT / "kmod/guest/tool/crc32c.c"]
    strict = [
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined",
        "-fsanitize-undefined-trap-on-error",
    ]
    command = ["gcc", "-shared", "-fPIC", *strict, "-I", ROOT / "kmod", "-o", library, *sources]
    subprocess.run(command, check=True, timeout=60)
    return Parser(library)


def good() -> Header:
    header = Header(
        magic=MAGIC,
        version=1,
        header_bytes=Header.BYTES,
        memory_bytes=MEMORY_BYTES,
        abi=ABI_MAJOR << 16 | ABI_MINOR,
        flags=ENABLED,
        ring=0x10_0000,
        completion=0x11_0000,
        shadow=0x12_0000,
        run_ns=123,
        entries=64,
        run_ns_hi=0,
        tail=2**32 - 1,
        completed=2**32 - 60,
        error=0,
        error_index=0,
        config=bytearray(256),
        msix=bytearray(32),
        engine=ENGINE,
        operations=OPERATIONS,
    )
    header.config[0], header.config[COMMAND] = 0x34, MASTER
    return header


def test_a_state_comes_back_as_it_was(parser: Parser) -> None:
    header = good()
    header.flags = ENABLED | REPORTED
    header.error = ERRORS - 1
    ret, fault, state = parser.parse(header.pack())
    assert (ret, fault) == (0, None)
    for name in ("ring", "completion", "shadow", "entries", "run_ns", "tail", "completed", "error"):
        assert getattr(state, name) == getattr(header, name)
    assert (state.enabled, state.reported) == (True, True)
    assert parser.format(state, header) == header.pack()


def test_an_engine_may_execute_more_than_a_guest_has_found(parser: Parser) -> None:
    header = good()
    header.operations = OPERATIONS & ~4
    assert parser.parse(header.pack())[:2] == (0, None)


def test_any_flipped_bit_is_noticed(parser: Parser) -> None:
    data = good().pack()
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert parser.parse(bytes(flipped))[0] != 0, f"bit {bit}"


@pytest.mark.parametrize(
    ("values", "error", "fault"),
    [
        ({"magic": MAGIC + 1}, errno.EPROTONOSUPPORT, "magic"),
        ({"version": 2}, errno.EPROTONOSUPPORT, "version"),
        ({"header_bytes": Header.BYTES + 8}, errno.EPROTONOSUPPORT, "header_bytes"),
        ({"abi": ABI_MAJOR << 16 | ABI_MINOR + 1}, errno.EPROTONOSUPPORT, "abi"),
        ({"abi": ABI_MAJOR + 1 << 16}, errno.EPROTONOSUPPORT, "abi"),
        ({"memory_bytes": 2 * MEMORY_BYTES}, errno.ERANGE, "memory_bytes"),
        ({"memory_bytes": 0}, errno.ERANGE, "memory_bytes"),
        ({"flags": 4}, errno.EINVAL, "flags"),
        ({"flags": ENABLED | REPORTED}, errno.EINVAL, "flags"),
        ({"flags": REPORTED, "error": 1, "tail": 0, "completed": 0}, errno.EINVAL, "flags"),
        ({"error": ERRORS}, errno.EINVAL, "error"),
        ({"error_index": 1}, errno.EINVAL, "error_index"),
        ({"run_ns": 1 << 63}, errno.EINVAL, "run_ns"),
        ({"flags": 0}, errno.EINVAL, "tail"),
        ({"tail": 5}, errno.EINVAL, "tail"),
        ({"entries": 48}, errno.EINVAL, "ring"),
        ({"engine": b"edu"}, errno.EOPNOTSUPP, "engine"),
        ({"engine": b"software"}, errno.EOPNOTSUPP, "engine"),
        ({"engine": ENGINE[:15] + b"x"}, errno.EOPNOTSUPP, "engine"),
        ({"operations": OPERATIONS | 2}, errno.EOPNOTSUPP, "operations"),
        ({"operations": 1 << 31}, errno.EOPNOTSUPP, "operations"),
    ],
)
def test_a_refusal_names_the_field_and_the_kind(parser: Parser, values: dict[str, int], error: int, fault: str) -> None:
    header = good()
    for name, value in values.items():
        setattr(header, name, value)
    assert parser.parse(header.pack())[:2] == (error, fault)


def possible(header: Header, parser: Parser, state: State) -> bool:
    """Decide independently of the checked code, from what a device can be."""
    reach = (
        all((a ^ b) & ~w & 0xFF == 0 for a, b, w in zip(data, initial, writable, strict=True))
        for data, initial, writable in (
            (header.config, parser.target.config, parser.target.config_writable),
            (header.msix, parser.target.msix, parser.target.msix_writable),
        )
    )
    if not all(reach) or header.flags > 3 or header.abi >> 16 != ABI_MAJOR or state.error >= ERRORS:
        return False
    if state.run_ns >= 2**63:
        return False
    if (state.error_index or state.reported) and not state.error:
        return False
    if state.reported and not state.enabled:
        return False
    if (header.magic, header.version, header.header_bytes, header.memory_bytes, header.engine) != (
        MAGIC,
        1,
        Header.BYTES,
        MEMORY_BYTES,
        ENGINE,
    ):
        return False
    if any(header.operations >> bit & 1 and not OPERATIONS >> bit & 1 for bit in range(32)):
        return False
    if not state.enabled:
        return state.tail == state.completed == 0
    blocks = ((state.ring, 64 * state.entries, 64), (state.completion, 32 * state.entries, 32), (state.shadow, 64, 64))
    return (
        state.entries in {8 << shift for shift in range(10)}
        and all(at % align == 0 and at + count < 2**64 for at, count, align in blocks)
        and (state.tail - state.completed) % 2**32 <= state.entries
        and bool(header.config[COMMAND] & MASTER)
    )


def test_what_passes_can_be(parser: Parser) -> None:
    """The headers have the right checksum and one to three changed fields, mostly with values at limits."""
    random_ = random.Random(5)
    names = [name for name in vars(good()) if name not in ("config", "msix", "engine")]
    widths = {
        name: 8 if name in ("magic", "memory_bytes", "ring", "completion", "shadow", "run_ns") else 4 for name in names
    }
    passed = 0
    for _ in range(CASES):
        header = good()
        for _ in range(random_.randint(1, 3)):
            name = random_.choice([*names, "config", "msix", "engine", "tail", "entries", "ring", "flags"])
            if name == "engine":
                header.engine = random_.choice([b"edu", b"", ENGINE[:15] + b"x", ENGINE])
            elif name in ("config", "msix"):
                data = getattr(header, name)
                data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
            else:
                value = random_.choice(EDGES) if random_.random() < 0.7 else random_.getrandbits(64)
                setattr(header, name, value % 2 ** (8 * widths[name]))
        ret, fault, state = parser.parse(header.pack())
        assert (ret == 0) == (fault is None)
        assert ret or possible(header, parser, state), header
        passed += not ret
    assert CASES / 50 < passed < CASES / 2
