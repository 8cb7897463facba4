# SPDX-License-Identifier: Apache-2.0
"""OpenCL as messages: all of 1.2, and those parts of 3.0 that PoCL offers and programs use.

The rules of compute/README.md apply. In short:

* The client chooses handles from 1 to VGPU_CL_HANDLES_MAX - 1, separately for each kind, and reuses the number of a
  released object. A request that creates an object needs no answer. If such a creation fails and there is no answer to
  report the error, every use of the handle fails with that error until the handle is released.
* A request with a call number in its header is answered with ANSWER and that number. A command has no answer, but it
  has a COMPLETION if its header has VGPU_CL_NOTIFY.
* A command's error is the status of its event and its COMPLETION. If the command has neither, the error stays with the
  queue, and the next FINISH of that queue completes with it.
* A message that the decoder refuses ends the child. A well-formed message that names a wrong handle or value fails with
  the API's error.
"""

from __future__ import annotations

from compute.api.model import Array, Blob, Description, Field, Message
from compute.api.opencl_commands import COMMANDS
from compute.api.opencl_functions import FUNCTIONS
from compute.api.opencl_parts import BUILT, HEADERS, OPTIONS, devices, structures, u32, u64
from compute.api.opencl_values import (
    ARGUMENT_INFORMATION,
    CONSTANTS,
    ENUMERATIONS,
    IMAGE_FORMAT,
    STRUCTURES,
    WORK_GROUP,
)

REQUESTS = (
    Message(
        "HELLO",
        1,
        (u32("version"), u32("reserved", "reserved")),
        (
            u32("version"),
            u32("device_count"),
            u32("information_bytes", "count"),
            u32("reserved", "reserved"),
            Array(
                "information",
                "uint8_t",
                "information_bytes",
                60 << 10,
                doc="records of struct vgpu_cl_information: all that the library says, without what names a handle",
            ),
        ),
        doc="First request of a client. The answer lets the client answer clGetPlatformInfo and clGetDeviceInfo.",
    ),
    Message(
        "GET",
        2,
        (
            u32("query", doc="enum vgpu_cl_query"),
            u32("handle", "value", doc="of the kind that the query says, 0 for DEVICE"),
            u32("param"),
            u32("device", "device"),
            u32("index"),
            u32("input_count", doc="elements of @input that there are"),
            u64("input", array=3),
            Blob("value", inline=True, written=True, doc="where the value goes; INLINE: into the answer, if it fits"),
        ),
        (
            u64("bytes", doc="of the whole value"),
            u32(
                "value_bytes",
                "count",
                doc="of @value: as many as requested; in the message, not in the bulk area",
            ),
            Array("value", "uint8_t", "value_bytes", 32 << 10),
        ),
        doc="A query. @value_bytes is how much of the value the client wants; more is truncated.",
    ),
    Message(
        "GET_IMAGE_FORMATS",
        3,
        (u32("context", "handle", "CONTEXT"), u32("image_type"), u64("flags", "flags")),
        (u32("format_count", "count"), structures("formats", IMAGE_FORMAT, "format_count", 4096)),
        doc="clGetSupportedImageFormats.",
    ),
    Message(
        "RELEASE",
        4,
        (u32("kind", "kind"), u32("handle", "handle", "any")),
        doc="The client does not use the handle any more; commands under way keep what they need. Of memory with "
        "storage in the window the answer, if one is asked for, comes when the library has let go of it.",
    ),
    Message("CREATE_CONTEXT", 5, (u32("context", "new", "CONTEXT"), *devices())),
    Message(
        "CREATE_QUEUE",
        6,
        (
            u32("queue", "new", "QUEUE"),
            u32("context", "handle", "CONTEXT"),
            u32("device", "device"),
            u64("properties", "flags", "cl_command_queue_properties"),
        ),
    ),
    Message("FLUSH", 7, (u32("queue", "handle", "QUEUE"), u32("reserved", "reserved"))),
    Message(
        "CREATE_BUFFER",
        8,
        (
            u32("memory", "new", "MEMORY"),
            u32("context", "handle", "CONTEXT"),
            u64("flags", "flags", "cl_mem_flags without those about host pointers"),
            u64("bytes", "bytes"),
            Blob("storage", inline=False, absent=True, written=True, doc="the buffer's storage in the bulk area"),
            Blob("contents", absent=True, doc="copied into the buffer before the answer"),
        ),
        doc="With storage the buffer lives in the bulk area until it is released and that RELEASE is answered.",
    ),
    Message(
        "CREATE_SUB_BUFFER",
        9,
        (
            u32("memory", "new", "MEMORY"),
            u32("parent", "handle", "MEMORY"),
            u64("flags", "flags"),
            u64("origin", "offset"),
            u64("bytes", "bytes"),
        ),
    ),
    Message(
        "CREATE_IMAGE",
        10,
        (
            u32("memory", "new", "MEMORY"),
            u32("context", "handle", "CONTEXT"),
            u64("flags", "flags"),
            u32("order"),
            u32("type"),
            u32("image_type"),
            u32("buffer", "optional", "MEMORY", "of a 1D image buffer, or of a 2D image from a buffer"),
            u64("width"),
            u64("height"),
            u64("depth"),
            u64("array_size"),
            u64("row_pitch", doc="of @contents, or of the buffer"),
            u64("slice_pitch"),
            u32("mip_levels"),
            u32("samples"),
            Blob("contents", absent=True, doc="copied into the image before the answer"),
        ),
    ),
    Message(
        "CREATE_SAMPLER",
        11,
        (
            u32("sampler", "new", "SAMPLER"),
            u32("context", "handle", "CONTEXT"),
            u32("normalized"),
            u32("addressing"),
            u32("filter"),
        ),
    ),
    Message(
        "CREATE_PROGRAM_WITH_SOURCE",
        12,
        (u32("program", "new", "PROGRAM"), u32("context", "handle", "CONTEXT"), Blob("source", parsed=True)),
    ),
    Message(
        "CREATE_PROGRAM_WITH_BINARY",
        13,
        (
            u32("program", "new", "PROGRAM"),
            u32("context", "handle", "CONTEXT"),
            u32("device_count", "count"),
            Array("devices", "uint32_t", "device_count", 16, role="device"),
            Array("lengths", "uint64_t", "device_count", 16),
            Blob("binaries", parsed=True, doc="one behind the other; @lengths sum up to its bytes"),
        ),
        (u32("device_count", "count"), Array("statuses", "int32_t", "device_count", 16)),
        doc="The answer has a status for each device.",
    ),
    Message(
        "CREATE_PROGRAM_WITH_BUILT_IN_KERNELS",
        14,
        (
            u32("program", "new", "PROGRAM"),
            u32("context", "handle", "CONTEXT"),
            *devices(),
            Blob("names", parsed=True, doc="as the API has them, without NUL"),
        ),
    ),
    Message(
        "BUILD_PROGRAM",
        15,
        (u32("program", "handle", "PROGRAM"), *devices(), OPTIONS, *HEADERS),
        BUILT,
        doc="Answered when the compiler has ended; nothing else waits for it.",
    ),
    Message(
        "COMPILE_PROGRAM",
        16,
        (
            u32("program", "handle", "PROGRAM"),
            *devices(),
            u32("header_count", "count"),
            Array("header_programs", "uint32_t", "header_count", 256, role="handle", object="PROGRAM"),
            OPTIONS,
            Blob("header_names", parsed=True, absent=True, doc="of @header_programs, each ending with NUL"),
            *HEADERS,
        ),
        BUILT,
    ),
    Message(
        "LINK_PROGRAM",
        17,
        (
            u32("program", "new", "PROGRAM"),
            u32("context", "handle", "CONTEXT"),
            *devices(),
            u32("input_count", "count"),
            Array("inputs", "uint32_t", "input_count", 1024, role="handle", object="PROGRAM"),
            OPTIONS,
        ),
        BUILT,
        doc="If it fails and the library makes no program, the handle stands for one that was not built.",
    ),
    Message(
        "CREATE_KERNEL",
        18,
        (
            u32("kernel", "new", "KERNEL"),
            u32("program", "handle", "PROGRAM"),
            Blob("name", parsed=True, doc="without NUL"),
        ),
        (
            u32("argument_count", "count"),
            u32("device_count", "count", doc="devices of the program's context; their work groups are in that order"),
            u32("text_bytes", "count", doc="0 if the texts do not fit: ask with GET"),
            structures("arguments", ARGUMENT_INFORMATION, "argument_count", 1024),
            structures("work_groups", WORK_GROUP, "device_count", 16),
            Array(
                "text",
                "uint8_t",
                "text_bytes",
                32 << 10,
                doc="strings that end with NUL: the kernel's attributes, then each argument's type and name",
            ),
        ),
    ),
    Message(
        "CREATE_USER_EVENT",
        19,
        (u32("event", "new", "EVENT"), u32("context", "handle", "CONTEXT")),
    ),
    Message(
        "SET_USER_EVENT_STATUS",
        20,
        (u32("event", "handle", "EVENT"), Field("status", "int32_t", doc="CL_COMPLETE or negative")),
    ),
    *COMMANDS,
)

REPLIES = (
    Message(
        "ANSWER",
        256,
        (Field("status", "int32_t", doc="the API's error"), u32("answered", doc="the request's op")),
        doc="Answers a request; what a request's answer has besides stands behind these fields. If the status is an "
        "error it may be missing.",
    ),
    Message(
        "COMPLETION",
        257,
        (
            Field("status", "int32_t", doc="0 or an error; with PROGRESS also CL_SUBMITTED and CL_RUNNING"),
            u32("event", doc="of the command, 0 if it has none"),
            u64("queued_ns"),
            u64("submitted_ns"),
            u64("started_ns"),
            u64("ended_ns"),
        ),
        doc="A command with NOTIFY has ended; the times are those of its profile, 0 if there is none.",
    ),
    Message(
        "CONTEXT_NEWS",
        258,
        (
            u32("context"),
            u32("text_bytes", "count"),
            Array("text", "uint8_t", "text_bytes", 4096),
        ),
        doc="The library has called the context's callback.",
    ),
    Message(
        "PRINTF",
        259,
        (u32("text_bytes", "count"), u32("reserved", "reserved"), Array("text", "uint8_t", "text_bytes", 32 << 10)),
        doc="Text that kernels have printed; comes before the completion of the command that printed it.",
    ),
)

OPENCL = Description("cl", CONSTANTS, ENUMERATIONS, STRUCTURES, REQUESTS, REPLIES, FUNCTIONS)
