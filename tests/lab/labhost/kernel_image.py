# SPDX-License-Identifier: Apache-2.0
"""Extracts kernels from the files in which they are compressed.

Such a file decompresses its kernel when it boots. An emulated processor takes seconds for that, and a guest in an
emulated lab host takes longer. QEMU boots an uncompressed kernel directly if the kernel has an entry point for that
(PVH; Debian's kernels have one).
"""

import lzma
import shutil
import struct
import subprocess
from pathlib import Path

from labhost.cache import Cache, digest
from labhost.errors import LabError
from labhost.paths import Paths
from labhost.toolchain import Toolchain

# Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header"
_SETUP_SECTORS_AT, _DEFAULT_SETUP_SECTORS, _SECTOR_BYTES = 0x1F1, 4, 512
_MAGIC_AT, _MAGIC = 0x202, b"HdrS"
_PAYLOAD_AT = 0x248
_SIZE_BYTES = 4
"""The payload ends with the kernel's size, which is not part of the compressed data."""

_ELF_64 = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<32xQQ6xHHHH")
"""The offsets of the program headers and of the section headers, then the size and number of each."""
_PROGRAM_HEADER = struct.Struct("<I4xQ16xQ")
"""Type, offset and size in the file."""
_PT_NOTE = 4
_PVH_NOTE = struct.pack("<I4s", 18, b"Xen")
"""Type (XEN_ELFNOTE_PHYS32_ENTRY) and name of the note with the entry point."""

_LIMIT_S = 60


def bootable(paths: Paths, toolchain: Toolchain) -> Path:
    """Return the file that QEMU boots fastest: the uncompressed kernel if possible, else the compressed file itself."""

    def build(directory: Path) -> None:
        if kernel := uncompressed(toolchain.vmlinuz.read_bytes()):
            (directory / "vmlinux").write_bytes(kernel)

    name = f"vmlinux-{toolchain.kernel.name}"
    key = digest([toolchain.directory.name, Path(__file__).read_bytes()])
    image = Cache(paths.cache).entry(name, key, build) / "vmlinux"
    return image if image.is_file() else toolchain.vmlinuz


def uncompressed(image: bytes) -> bytes | None:
    """Return the kernel in a bzImage; None if it is compressed in an unknown way or has no entry point for QEMU."""
    if image[_MAGIC_AT:].startswith(_MAGIC):
        start = ((image[_SETUP_SECTORS_AT] or _DEFAULT_SETUP_SECTORS) + 1) * _SECTOR_BYTES
        offset, size = struct.unpack_from("<II", image, _PAYLOAD_AT)
        kernel = _decompressed(image[start + offset :][: size - _SIZE_BYTES])
        if kernel.startswith(_ELF_64):
            return _without_relocations(kernel) if _has_entry_point(kernel) else None
    return None


def _decompressed(data: bytes) -> bytes:
    """Return the decompressed payload; empty if its format is unknown."""
    if data.startswith(b"\xfd7zXZ"):
        return lzma.decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        if shutil.which("zstd") is None:
            raise LabError("zstd is missing: install the packages of tests/packages.txt")
        done = subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S)
        return done.stdout
    return b""


def _has_entry_point(kernel: bytes) -> bool:
    table, _, size, number, _, _ = _HEADER.unpack_from(kernel)
    headers = [_PROGRAM_HEADER.unpack_from(kernel, table + at * size) for at in range(number)]
    return any(_PVH_NOTE in kernel[offset:][:length] for kind, offset, length in headers if kind == _PT_NOTE)


def _without_relocations(kernel: bytes) -> bytes:
    """The kernel's relocations follow the section headers; only a decompressor that moves the kernel uses them."""
    _, table, _, _, size, number = _HEADER.unpack_from(kernel)
    return kernel[: table + number * size]
