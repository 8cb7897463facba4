# SPDX-License-Identifier: Apache-2.0
"""QEMU boots the kernel that the compressed file contains; a file in an unknown format is booted unchanged."""

import lzma
import os
import shutil
import struct

import pytest
from labhost.kernel_image import bootable, uncompressed
from labhost.paths import Paths
from labhost.toolchain import KERNELS, toolchain

needs_lab = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)

SETUP_SECTORS = 2
NOTE = struct.pack("<III", 4, 8, 18) + b"Xen\0" + struct.pack("<Q", 0x1000000)
SECTIONS = b"section headers" * 8


def elf(note: bytes) -> bytes:
    """A kernel of one segment of notes and, at its end, section headers."""
    notes_at = 64 + 56
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, notes_at + len(note), 0, 64, 56, 1, len(SECTIONS), 1, 0)
    program_header = struct.pack("<IIQQQQQQ", 4, 4, notes_at, 0, 0, len(note), len(note), 4)
    return header + program_header + note + SECTIONS


def big(payload: bytes) -> bytes:
    """A bzImage with this payload, followed by the payload's size."""
    setup = bytearray((SETUP_SECTORS + 1) * 512)
    setup[0x1F1] = SETUP_SECTORS
    setup[0x202:0x206] = b"HdrS"
    offset = 100
    setup[0x248:0x250] = struct.pack("<II", offset, len(payload) + 4)
    return bytes(setup) + bytes(offset) + payload + b"size" + b"what follows"


def test_a_kernel_is_taken_out_without_its_relocations() -> None:
    assert uncompressed(big(lzma.compress(elf(NOTE) + b"relocations"))) == elf(NOTE)


@pytest.mark.parametrize(
    "image",
    [
        b"",
        big(b"compressed in an unknown way"),
        big(lzma.compress(b"no kernel")),
        big(lzma.compress(elf(NOTE.replace(b"Xen", b"GNU")))),
        elf(NOTE),
    ],
    ids=["empty", "unknown", "no-kernel", "no-entry-point", "no-image"],
)
def test_what_is_not_understood_is_left_as_it_is(image: bytes) -> None:
    assert uncompressed(image) is None


@needs_lab
@pytest.mark.parametrize("name", ["6.1", "6.12", "7.x"])
def test_each_kernel_of_debian_is_taken_out(name: str) -> None:
    paths = Paths.find()
    chain = toolchain(paths, KERNELS[name])
    image = bootable(paths, chain)
    assert image != chain.vmlinuz
    assert f"Linux version {chain.release} ".encode() in image.read_bytes()
