# SPDX-License-Identifier: Apache-2.0
"""OpenCL as messages: 1.2 complete, and what PoCL offers of 3.0 and programs use.

The rules of compute/README.md hold. In short:

* The client chooses handles, from 1 to VGPU_CL_HANDLES_MAX - 1, apart for each kind, and uses the number of a released
  object again. A request that creates an object needs no answer. If creation fails without one, the handle stands for
  an object that fails every use with that error, until it is released.
* A request whose header has a call number is answered with ANSWER and that number; a command is not answered, but has
  a COMPLETION if its header has VGPU_CL_NOTIFY.
* A command's error is the status of its event and its COMPLETION. If it has neither, it stays with the queue, and the
  next FINISH of that queue completes with it.
* A message that the decoder refuses ends the child. A well-formed message that names a wrong handle or value fails
  with the API's error.
"""

from __future__ import annotations

from compute.api.model import Array, Blob, Constant, Description, Enumeration, Field, Message, Part, Structure
from compute.api.opencl_functions import FUNCTIONS

CONSTANTS = (
    Constant("VERSION", "1u", "of these messages; HELLO carries it"),
    Constant("NOTIFY", "(1u << 0)", "flag of a command: send a COMPLETION with the header's call"),
    Constant("PROGRESS", "(1u << 1)", "flag beside NOTIFY: also when the command is submitted and when it runs"),
    Constant("HANDLES_MAX", "(1u << 20)", "handles of a kind are below this"),
    Constant("DEVICES_MAX", "16u"),
    Constant("WAITS_MAX", "1024u", "events in a wait list"),
    Constant("ARGUMENTS_MAX", "1024u"),
    Constant("ARGUMENT_DATA_MAX", "(32u << 10)", "bytes of arguments that are longer than 8 bytes"),
    Constant("INLINE_MAX", "(32u << 10)", "bytes of a blob in a message"),
    Constant("PATTERN_MAX", "128u"),
    Constant("TEXT_MAX", "(16u << 20)", "bytes of a source, of options, of headers"),
    Constant("BINARY_MAX", "(256u << 20)", "bytes of a program's binaries"),
    Constant("PATH_MAX", "1024u", "bytes of a header's name"),
    Constant("NAME_MAX", "1024u", "bytes of a kernel's name"),
    Constant("INLINE", "UINT64_MAX", "offset of a blob that is in the message"),
    Constant("ABSENT", "(UINT64_MAX - 1)", "offset of a blob that there is not"),
)

ENUMERATIONS = (
    Enumeration(
        "kind",
        (
            ("CONTEXT", 1, ""),
            ("QUEUE", 2, ""),
            ("MEMORY", 3, "buffers, sub-buffers and images"),
            ("SAMPLER", 4, ""),
            ("PROGRAM", 5, ""),
            ("KERNEL", 6, ""),
            ("EVENT", 7, ""),
            ("MAPPING", 8, "a mapped region of memory with storage in the window"),
        ),
        "Kinds of handles.",
    ),
    Enumeration(
        "query",
        (
            ("PROGRAM", 1, "clGetProgramInfo; CL_PROGRAM_BINARIES: the binary of @device alone"),
            ("PROGRAM_BUILD", 2, "clGetProgramBuildInfo with @device"),
            ("KERNEL", 3, "clGetKernelInfo"),
            ("KERNEL_ARGUMENT", 4, "clGetKernelArgInfo with @index"),
            ("KERNEL_WORK_GROUP", 5, "clGetKernelWorkGroupInfo with @device"),
            ("KERNEL_SUB_GROUP", 6, "clGetKernelSubGroupInfo with @device and @input"),
            ("MEMORY", 7, "clGetMemObjectInfo"),
            ("IMAGE", 8, "clGetImageInfo"),
            ("DEVICE", 9, "clGetDeviceInfo with @device"),
        ),
        "What GET asks. Whatever names a handle or a pointer the client answers by itself; the child refuses it.",
    ),
    Enumeration(
        "argument_kind",
        (
            ("UNKNOWN", 0, "in CREATE_KERNEL's answer only: nothing is known of it"),
            ("VALUE", 1, ""),
            ("BUFFER", 2, "global or constant memory"),
            ("IMAGE", 3, ""),
            ("SAMPLER", 4, ""),
            ("LOCAL", 5, "local memory: a size only"),
        ),
        "Kinds of a kernel's arguments.",
    ),
    Enumeration(
        "information_kind",
        (("PLATFORM", 1, ""), ("DEVICE", 2, "of @device")),
        "Whose information a record of HELLO's answer is.",
    ),
)

# Elements of arrays.
ARGUMENT = Structure(
    "argument",
    (
        Field("kind", "uint32_t", doc="enum vgpu_cl_argument_kind, never UNKNOWN"),
        Field("bytes", "uint32_t", doc="size of a VALUE or of LOCAL memory; of others 0"),
        Field(
            "value",
            "uint64_t",
            doc="VALUE: the bytes themselves if at most 8, else where they begin in @data; a handle, or 0 for NULL",
        ),
    ),
    "One argument of a launch; all of them are there, in order.",
)
ARGUMENT_INFORMATION = Structure(
    "argument_information",
    (
        Field("kind", "uint32_t", doc="enum vgpu_cl_argument_kind"),
        Field("bytes", "uint32_t", doc="size of a VALUE, 0 if not known"),
        Field("address", "uint32_t", doc="cl_kernel_arg_address_qualifier, 0 if not known"),
        Field("access", "uint32_t", doc="cl_kernel_arg_access_qualifier, 0 if not known"),
        Field("type", "uint64_t", doc="cl_kernel_arg_type_qualifier"),
    ),
    "What CREATE_KERNEL's answer says of an argument.",
)
WORK_GROUP = Structure(
    "work_group",
    (
        Field("work_group_bytes", "uint64_t", doc="CL_KERNEL_WORK_GROUP_SIZE: work-items"),
        Field("required", "uint64_t", array=3, doc="CL_KERNEL_COMPILE_WORK_GROUP_SIZE"),
        Field("local_bytes", "uint64_t", doc="CL_KERNEL_LOCAL_MEM_SIZE without local arguments"),
        Field("private_bytes", "uint64_t"),
        Field("multiple", "uint64_t", doc="CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE"),
    ),
    "What CREATE_KERNEL's answer says for a device of the context.",
)
INFORMATION = Structure(
    "information",
    (
        Field("kind", "uint16_t", doc="enum vgpu_cl_information_kind"),
        Field("device", "uint16_t"),
        Field("param", "uint32_t", doc="cl_platform_info or cl_device_info"),
        Field("bytes", "uint32_t", doc="of the value, which follows, padded to 8"),
        Field("reserved", "uint32_t"),
    ),
    "Head of a record of HELLO's answer.",
)
HEADER = Structure(
    "header_file",
    (
        Field("name_bytes", "uint32_t", doc="of the name, which follows, without NUL"),
        Field("content_bytes", "uint32_t", doc="of the contents behind the name; all padded to 8"),
    ),
    "Head of a record of a program's headers.",
)
DEVICE_BUILD = Structure(
    "device_build",
    (
        Field("device", "uint32_t"),
        Field("status", "int32_t", doc="cl_build_status"),
        Field("binary_type", "uint32_t", doc="cl_program_binary_type"),
        Field("log_bytes", "uint32_t", doc="of this device's part of @logs; the whole log is had with GET"),
    ),
    "What the answer to BUILD_PROGRAM says for a device.",
)
IMAGE_FORMAT = Structure(
    "image_format",
    (Field("order", "uint32_t", doc="cl_channel_order"), Field("type", "uint32_t", doc="cl_channel_type")),
)

STRUCTURES = (
    ARGUMENT,
    ARGUMENT_INFORMATION,
    WORK_GROUP,
    INFORMATION,
    HEADER,
    DEVICE_BUILD,
    IMAGE_FORMAT,
)


def element(structure: Structure) -> tuple[str, int]:
    """The C type of a structure and its size."""
    return f"struct vgpu_cl_{structure.name}", sum(field.size for field in structure.fields)


def u32(name: str, role: str = "value", kind: str = "", doc: str = "", array: int = 0) -> Field:
    """A field of four bytes."""
    return Field(name, "uint32_t", role, kind, array, doc)


def u64(name: str, role: str = "value", doc: str = "", array: int = 0) -> Field:
    """A field of eight bytes."""
    return Field(name, "uint64_t", role, "", array, doc)


def structures(name: str, structure: Structure, count: str, most: int, doc: str = "") -> Array:
    """An array of structures."""
    ctype, size = element(structure)
    return Array(name, ctype, count, most, size, doc=doc)


def devices() -> tuple[Part, Part]:
    """The devices of a context or program, by index; their number may be 0 where the API's list may be NULL."""
    return u32("device_count", "count"), Array("devices", "uint32_t", "device_count", 16, role="device")


COMMAND: tuple[Part, ...] = (
    u32("queue", "handle", "QUEUE"),
    u32("event", "new_or_none", "EVENT", "the command's event, or 0 for none"),
    u32("wait_count", "count"),
    Array("waits", "uint32_t", "wait_count", 1024, role="handle", object="EVENT"),
)
"""What every command begins with."""

BUILT: tuple[Part, ...] = (
    u32("device_count", "count"),
    u32("log_bytes", "count"),
    structures("builds", DEVICE_BUILD, "device_count", 16),
    Array("logs", "uint8_t", "log_bytes", 32 << 10, doc="one behind the other, cut where they do not fit"),
)
"""The answer of whatever compiles; it comes with each status."""

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
    """Origin and region of an image, in pixels, rows and slices."""
    return u64(f"{prefix}origin", array=3), u64("region", array=3)


def rect(prefix: str) -> tuple[Part, ...]:
    """Where a rectangle is in a buffer: origin in bytes, rows and slices; pitches in bytes, 0 for the region's."""
    return (
        u64(f"{prefix}origin", array=3),
        u64(f"{prefix}row_pitch"),
        u64(f"{prefix}slice_pitch"),
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
                doc="of @value: as many as were asked for, in the message and not in the bulk area",
            ),
            Array("value", "uint8_t", "value_bytes", 32 << 10),
        ),
        doc="A query. @value_bytes is how much of the value the client wants; more is cut.",
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
    # Commands.
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
