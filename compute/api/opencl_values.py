# SPDX-License-Identifier: Apache-2.0
"""Numbers and structures that OpenCL's messages use."""

from __future__ import annotations

from compute.api.model import Constant, Enumeration, Field, Structure

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
