# SPDX-License-Identifier: Apache-2.0
"""Parts that several of OpenCL's messages share."""

from __future__ import annotations

from compute.api.model import Array, Blob, Field, Part, Structure
from compute.api.opencl_values import DEVICE_BUILD


def element(structure: Structure) -> tuple[str, int]:
    """Return the C type of a structure and its size."""
    return f"struct vgpu_cl_{structure.name}", sum(field.size for field in structure.fields)


def u32(name: str, role: str = "value", kind: str = "", doc: str = "", array: int = 0) -> Field:
    """Return a field of four bytes."""
    return Field(name, "uint32_t", role, kind, array, doc)


def u64(name: str, role: str = "value", doc: str = "", array: int = 0) -> Field:
    """Return a field of eight bytes."""
    return Field(name, "uint64_t", role, "", array, doc)


def structures(name: str, structure: Structure, count: str, most: int, doc: str = "") -> Array:
    """Return an array of structures."""
    ctype, size = element(structure)
    return Array(name, ctype, count, most, size, doc=doc)


def devices() -> tuple[Part, Part]:
    """Return the devices of a context or program, by index. Their number may be 0 if the API's list may be NULL."""
    return u32("device_count", "count"), Array("devices", "uint32_t", "device_count", 16, role="device")


COMMAND: tuple[Part, ...] = (
    u32("queue", "handle", "QUEUE"),
    u32("event", "new_or_none", "EVENT", "the command's event, or 0 for none"),
    u32("wait_count", "count"),
    Array("waits", "uint32_t", "wait_count", 1024, role="handle", object="EVENT"),
)
"""The common first parts of every command."""

BUILT: tuple[Part, ...] = (
    u32("device_count", "count"),
    u32("log_bytes", "count"),
    structures("builds", DEVICE_BUILD, "device_count", 16),
    Array("logs", "uint8_t", "log_bytes", 32 << 10, doc="one behind the other, cut where they do not fit"),
)
"""The answer of build, compile and link requests. It is sent with every status."""

HEADERS = (
    Blob(
        "directories",
        parsed=True,
        absent=True,
        doc="names where headers are looked for, each ending with NUL, relative to the root of the headers",
    ),
    Blob(
        "headers",
        parsed=True,
        absent=True,
        doc="records of struct vgpu_cl_header_file with names relative to a root, which the child makes",
    ),
)
OPTIONS = Blob("options", parsed=True, absent=True, doc="the program's own, without -I and without NUL")


def image_region(prefix: str = "") -> tuple[Part, ...]:
    """Return origin and region of an image, in pixels, rows and slices."""
    return u64(f"{prefix}origin", array=3), u64("region", array=3)


def rect(prefix: str) -> tuple[Part, ...]:
    """Return a rectangle in a buffer: origin in bytes, rows and slices; pitches in bytes.

    A pitch of 0 means that there are no gaps in the region.
    """
    return (
        u64(f"{prefix}origin", array=3),
        u64(f"{prefix}row_pitch"),
        u64(f"{prefix}slice_pitch"),
    )
