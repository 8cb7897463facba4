# SPDX-License-Identifier: Apache-2.0
"""Messages of OpenCL's commands, which go to a queue."""

from __future__ import annotations

from compute.api.model import Array, Blob, Message
from compute.api.opencl_parts import image_region, rect, structures, u32, u64
from compute.api.opencl_values import ARGUMENT

COMMANDS = (
    Message(
        "LAUNCH",
        32,
        (
            u32("kernel", "handle", "KERNEL"),
            u32("dimensions", doc="1 to 3"),
            u32("has", "flags", doc="bit 0: @offset, bit 1: @local; else NULL to the library"),
            u32("argument_count", "count"),
            u32("data_bytes", "count"),
            u64("offset", array=3),
            u64("global", array=3),
            u64("local", array=3),
            structures("arguments", ARGUMENT, "argument_count", 1024),
            Array("data", "uint8_t", "data_bytes", 32 << 10),
        ),
        command=True,
        doc="clEnqueueNDRangeKernel and clEnqueueTask.",
    ),
    Message(
        "READ_BUFFER",
        33,
        (
            u32("memory", "handle", "MEMORY"),
            u64("offset", "offset"),
            Blob("target", inline=False, written=True),
        ),
        command=True,
    ),
    Message(
        "WRITE_BUFFER",
        34,
        (
            u32("memory", "handle", "MEMORY"),
            u64("offset", "offset"),
            Blob("source"),
        ),
        command=True,
    ),
    Message(
        "READ_BUFFER_RECT",
        35,
        (
            u32("memory", "handle", "MEMORY"),
            *rect(""),
            u64("region", array=3),
            Blob("target", inline=False, written=True, doc="without gaps between rows and slices"),
        ),
        command=True,
    ),
    Message(
        "WRITE_BUFFER_RECT",
        36,
        (
            u32("memory", "handle", "MEMORY"),
            *rect(""),
            u64("region", array=3),
            Blob("source", doc="without gaps between rows and slices"),
        ),
        command=True,
    ),
    Message(
        "COPY_BUFFER",
        37,
        (
            u32("source", "handle", "MEMORY"),
            u32("target", "handle", "MEMORY"),
            u64("source_offset", "offset"),
            u64("target_offset", "offset"),
            u64("bytes", "bytes"),
        ),
        command=True,
    ),
    Message(
        "COPY_BUFFER_RECT",
        38,
        (
            u32("source", "handle", "MEMORY"),
            u32("target", "handle", "MEMORY"),
            *rect("source_"),
            *rect("target_"),
            u64("region", array=3),
        ),
        command=True,
    ),
    Message(
        "FILL_BUFFER",
        39,
        (
            u32("memory", "handle", "MEMORY"),
            u32("pattern_bytes", "count"),
            u64("offset", "offset"),
            u64("bytes", "bytes"),
            Array("pattern", "uint8_t", "pattern_bytes", 128),
        ),
        command=True,
    ),
    Message(
        "READ_IMAGE",
        40,
        (
            u32("memory", "handle", "MEMORY"),
            *image_region(),
            Blob("target", inline=False, written=True, doc="without gaps between rows and slices"),
        ),
        command=True,
    ),
    Message(
        "WRITE_IMAGE",
        41,
        (
            u32("memory", "handle", "MEMORY"),
            *image_region(),
            Blob("source", doc="without gaps between rows and slices"),
        ),
        command=True,
    ),
    Message(
        "COPY_IMAGE",
        42,
        (
            u32("source", "handle", "MEMORY"),
            u32("target", "handle", "MEMORY"),
            u64("source_origin", array=3),
            u64("target_origin", array=3),
            u64("region", array=3),
        ),
        command=True,
    ),
    Message(
        "COPY_IMAGE_TO_BUFFER",
        43,
        (
            u32("source", "handle", "MEMORY"),
            u32("target", "handle", "MEMORY"),
            *image_region(),
            u64("offset", "offset"),
        ),
        command=True,
    ),
    Message(
        "COPY_BUFFER_TO_IMAGE",
        44,
        (
            u32("source", "handle", "MEMORY"),
            u32("target", "handle", "MEMORY"),
            u64("offset", "offset"),
            *image_region(),
        ),
        command=True,
    ),
    Message(
        "FILL_IMAGE",
        45,
        (
            u32("memory", "handle", "MEMORY"),
            u32("color", array=4, doc="as the image's channel type has it"),
            *image_region(),
        ),
        command=True,
    ),
    Message(
        "MAP_BUFFER",
        46,
        (
            u32("memory", "handle", "MEMORY", "with storage in the window, or a part of such"),
            u32("mapping", "new", "MAPPING"),
            u64("flags", "flags", "cl_map_flags"),
            u64("offset", "offset"),
            u64("bytes", "bytes"),
        ),
        command=True,
        doc="Makes the storage valid for the client. Memory without such storage is mapped by reading and writing it.",
    ),
    Message(
        "UNMAP",
        47,
        (u32("mapping", "handle", "MAPPING"),),
        command=True,
        doc="Ends the mapping; its handle ends with the message.",
    ),
    Message(
        "MIGRATE",
        48,
        (
            u32("memory_count", "count"),
            u64("flags", "flags"),
            Array("memories", "uint32_t", "memory_count", 1024, role="handle", object="MEMORY"),
        ),
        command=True,
    ),
    Message("MARKER", 49, command=True, doc="clEnqueueMarkerWithWaitList."),
    Message("BARRIER", 50, command=True, doc="clEnqueueBarrierWithWaitList."),
    Message(
        "FINISH",
        51,
        command=True,
        doc="A marker behind everything in the queue that also flushes it. Completes with the queue's kept error, "
        "which is then forgotten.",
    ),
)
