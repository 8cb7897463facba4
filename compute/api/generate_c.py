# SPDX-License-Identifier: Apache-2.0
"""Generates C headers for the messages of a described API."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from compute.api.layout import Layout, all_layouts, inline_array

if TYPE_CHECKING:
    from compute.api.model import Array, Blob, Description, Field

LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n/* Written by compute/api/generate.py; do not edit. */\n"


def comment(text: str, indent: str = "") -> list[str]:
    """Return a text as a block comment, or nothing for an empty text."""
    if not text:
        return []
    lines = textwrap.wrap(text, 96)
    if len(lines) == 1:
        return [f"{indent}/* {lines[0]} */"]
    return [f"{indent}/*", *(f"{indent} * {line}" for line in lines), f"{indent} */"]


def declaration(field: Field) -> str:
    """Return the declaration of a struct member."""
    array = f"[{field.array}]" if field.array else ""
    note = f"\t/* {field.doc} */" if field.doc else ""
    return f"\t{field.ctype} {field.name}{array};{note}"


def structure(name: str, fields: Iterable[Field], head: list[str], size: int, doc: str) -> list[str]:
    """Return a struct, and an assertion that the compiler lays it out as described."""
    return [
        *comment(doc),
        f"struct {name} {{",
        *head,
        *(declaration(field) for field in fields),
        "};",
        f'_Static_assert(sizeof(struct {name}) == {size}, "layout of {name}");',
        "",
    ]


def payload_arrays(layout: Layout) -> list[Array]:
    """Return all arrays that may follow the fixed fields: the described arrays, then the arrays of inline blobs."""
    return [*layout.arrays, *(inline_array(blob) for blob in layout.blobs if blob.inline and not blob.written)]


def messages_header(api: Description) -> str:
    """Return the text of NAME_messages.h."""
    prefix = f"vgpu_{api.prefix}"
    capital = prefix.upper()
    requests, answers, replies = all_layouts(api)
    out = [LICENCE, f"#ifndef {capital}_MESSAGES_H", f"#define {capital}_MESSAGES_H", ""]
    out += ["#include <stdint.h>", "", '#include "protocol/window.h"', ""]
    for constant in api.constants:
        out += [
            f"#define {capital}_{constant.name} {constant.value}" + (f"\t/* {constant.doc} */" if constant.doc else "")
        ]
    for enumeration in api.enumerations:
        out += ["", *comment(enumeration.doc), f"enum {prefix}_{enumeration.name} {{"]
        for name, value, doc in enumeration.values:
            note = f"\t/* {doc} */" if doc else ""
            out += [f"\t{capital}_{enumeration.name.upper()}_{name} = {value},{note}"]
        out += ["};"]
    out += ["", "/* Requests, which the client sends, and replies, which the child sends. */", f"enum {prefix}_op {{"]
    out += [f"\t{capital}_{message.name} = {message.number}," for message in (*api.requests, *api.replies)]
    out += ["};", ""]
    last = max(message.number for message in api.requests)
    out += [f"#define {capital}_REQUESTS_END {last + 1}u\t/* requests are below this */", ""]
    out += [f"static inline const char *{prefix}_op_name(uint32_t op)", "{", "\tswitch (op) {"]
    for message in (*api.requests, *api.replies):
        out += [f"\tcase {capital}_{message.name}:", f'\t\treturn "{message.name}";']
    out += ["\t}", '\treturn "unknown";', "}", ""]
    for element in api.structures:
        size = sum(field.size for field in element.fields)
        out += structure(f"{prefix}_{element.name}", element.fields, [], size, element.doc)
    for layout in (*requests, *answers, *replies):
        doc = layout.doc
        tail = "; ".join(
            f"{array.ctype} {array.name}[{array.count}]" + (f" ({array.doc})" if array.doc else "")
            for array in payload_arrays(layout)
        )
        if tail:
            doc = f"{doc} Behind it: {tail}.".strip()
        out += structure(
            f"{prefix}_{layout.c_name}", layout.fields, ["\tstruct vgpu_message header;"], layout.fixed_bytes, doc
        )
    out += [f"#endif /* {capital}_MESSAGES_H */", ""]
    return "\n".join(out)


def check_field(field: Field, counts: dict[str, int], capital: str) -> list[str]:
    """Return C that refuses a wrong value of a fixed field."""
    name = f"m->{field.name}"
    handle = f"{capital}_HANDLES_MAX"
    match field.role:
        case "new" | "handle":
            return [f"\tif (!{name} || {name} >= {handle})", "\t\treturn false;"]
        case "new_or_none" | "optional":
            return [f"\tif ({name} >= {handle})", "\t\treturn false;"]
        case "device":
            return [f"\tif ({name} >= {capital}_DEVICES_MAX)", "\t\treturn false;"]
        case "kind":
            return [f"\tif ({name} < 1 || {name} > {capital}_KIND_MAPPING)", "\t\treturn false;"]
        case "count":
            return [f"\tif ({name} > {counts[field.name]}u)", "\t\treturn false;"]
        case "reserved" if field.array:
            return [
                f"\tfor (unsigned int i = 0; i < {field.array}; i++)",
                f"\t\tif ({name}[i])",
                "\t\t\treturn false;",
            ]
        case "reserved":
            return [f"\tif ({name})", "\t\treturn false;"]
    return []


def check_blob(blob: Blob, capital: str) -> list[str]:
    """Return C that refuses a blob that is neither in the message nor in the bulk area."""
    offset, size = f"m->{blob.name}_offset", f"m->{blob.name}_bytes"
    out: list[str] = []
    word = "if"
    if blob.inline:
        out += [
            f"\tif ({offset} == {capital}_INLINE) {{",
            f"\t\tif ({size} > {capital}_INLINE_MAX)",
            "\t\t\treturn false;",
        ]
        word = "\t} else if"
    if blob.absent:
        start = "\tif" if word == "if" else word
        out += [f"{start} ({offset} == {capital}_ABSENT) {{", f"\t\tif ({size})", "\t\t\treturn false;"]
        word = "\t} else if"
    start = "\tif" if word == "if" else word
    out += [f"{start} ({offset} > bulk_bytes || {size} > bulk_bytes - {offset}) {{", "\t\treturn false;", "\t}"]
    return out


def check_elements(array: Array, capital: str) -> list[str]:
    """Return C that refuses wrong handles and devices in an array."""
    if array.role not in {"handle", "device"}:
        return []
    value = f"view->{array.name}[i]"
    wrong = (
        f"!{value} || {value} >= {capital}_HANDLES_MAX"
        if array.role == "handle"
        else f"{value} >= {capital}_DEVICES_MAX"
    )
    return [
        f"\tfor (uint32_t i = 0; i < m->{array.count}; i++)",
        f"\t\tif ({wrong})",
        "\t\t\treturn false;",
    ]


def decoder(layout: Layout, prefix: str, command: bool, is_request: bool, op: str) -> list[str]:
    """Return the view of a message and the function that fills it."""
    capital = prefix.upper()
    name = f"{prefix}_{layout.c_name}"
    counts = {array.count: array.most for array in layout.arrays}
    arrays = payload_arrays(layout)
    inline = {blob.name for blob in layout.blobs}
    out = [f"struct {name}_view {{", f"\tconst struct {name} *message;"]
    for array in arrays:
        note = f"\t/* NULL unless {array.name}_offset is INLINE */" if array.name in inline else ""
        out += [f"\tconst {array.ctype} *{array.name};{note}"]
    out += ["};", ""]
    out += [
        f"static inline bool {prefix}_decode_{layout.c_name}(const void *copy, uint32_t bytes, uint64_t bulk_bytes,",
        f"\t\t\tstruct {name}_view *view)",
        "{",
        f"\tconst struct {name} *m = copy;",
        "\tuint64_t at = sizeof(*m);",
        "",
        "\t(void)bulk_bytes;",
        "\tif (bytes < sizeof(*m) || m->header.bytes != bytes || bytes % VGPU_MESSAGE_ALIGN)",
        "\t\treturn false;",
        f"\tif (m->header.op != {op})",
        "\t\treturn false;",
    ]
    flags = f"{capital}_NOTIFY | {capital}_PROGRESS" if command else "0u"
    if is_request:
        out += [f"\tif (m->header.flags & ~({flags}))", "\t\treturn false;"]
    for field in layout.fields:
        if is_request or field.role == "count":
            out += check_field(field, counts, capital)
    for blob in layout.blobs:
        out += check_blob(blob, capital)
    out += ["\tview->message = m;"]
    for array in arrays:
        if array.name in inline:
            out += [
                f"\tview->{array.name} = NULL;",
                f"\tif (m->{array.name}_offset == {capital}_INLINE) {{",
                f"\t\tview->{array.name} = (const {array.ctype} *)((const uint8_t *)copy + at);",
                f"\t\tat += vgpu_padded(m->{array.count} * {array.size}ull);",
                "\t}",
            ]
        else:
            out += [
                f"\tview->{array.name} = (const {array.ctype} *)((const uint8_t *)copy + at);",
                f"\tat += vgpu_padded(m->{array.count} * {array.size}ull);",
            ]
    out += ["\tif (at != bytes)", "\t\treturn false;"]
    for array in arrays:
        if is_request:
            out += check_elements(array, capital)
    out += ["\treturn true;", "}", ""]
    return out


def checker(api: Description, prefix: str) -> list[str]:
    """Return a function that decodes any request, for callers that do not need the view."""
    capital = prefix.upper()
    out = ["/* Is this a well-formed request? */"]
    out += [f"static inline bool {prefix}_check_request(const void *copy, uint32_t bytes, uint64_t bulk_bytes)", "{"]
    out += ["\tif (bytes < sizeof(struct vgpu_message))", "\t\treturn false;"]
    out += ["\tswitch (((const struct vgpu_message *)copy)->op) {"]
    for message in api.requests:
        name = message.name.lower()
        out += [f"\tcase {capital}_{message.name}: {{", f"\t\tstruct {prefix}_{name}_view view;", ""]
        out += [f"\t\treturn {prefix}_decode_{name}(copy, bytes, bulk_bytes, &view);", "\t}"]
    out += ["\t}", "\treturn false;", "}", ""]
    return out


def decode_header(api: Description) -> str:
    """Return the text of NAME_decode.h."""
    prefix = f"vgpu_{api.prefix}"
    capital = prefix.upper()
    requests, answers, replies = all_layouts(api)
    out = [LICENCE]
    out += comment(
        "Decoders. Each takes a private copy of a message, aligned to 8 bytes, and its length, and fills a view with "
        "pointers into the copy; or it returns false, and then whoever sent the message is not to be trusted. Checked "
        "are the length, the op, the flags, counts, reserved fields, that handles and devices are in range, and that "
        "blobs are in the message or in the bulk area of bulk_bytes. Not checked is whether handles and values mean "
        "anything. Of replies only what concerns lengths is checked."
    )
    out += [f"#ifndef {capital}_DECODE_H", f"#define {capital}_DECODE_H", ""]
    out += ["#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>", ""]
    out += [f'#include "{api_name(api)}_messages.h"', ""]
    out += ["/* Whoever includes this need not use all. */", "#pragma GCC diagnostic push"]
    out += ['#pragma GCC diagnostic ignored "-Wtype-limits"', ""]
    out += PADDED
    for message, layout in zip(api.requests, requests, strict=True):
        out += decoder(layout, prefix, message.command, True, f"{capital}_{message.name}")
    for layout in answers:
        out += decoder(layout, prefix, False, False, f"{capital}_ANSWER")
    for message, layout in zip(api.replies, replies, strict=True):
        out += decoder(layout, prefix, False, False, f"{capital}_{message.name}")
    out += checker(api, prefix)
    out += ["#pragma GCC diagnostic pop", "", f"#endif /* {capital}_DECODE_H */", ""]
    return "\n".join(out)


PADDED = [
    "#ifndef VGPU_PADDED",
    "#define VGPU_PADDED",
    "static inline uint64_t vgpu_padded(uint64_t bytes)",
    "{",
    "\treturn (bytes + (VGPU_MESSAGE_ALIGN - 1)) & ~(uint64_t)(VGPU_MESSAGE_ALIGN - 1);",
    "}",
    "#endif",
    "",
]


def api_name(api: Description) -> str:
    """Return the first part of the names of generated files."""
    return {"cl": "opencl"}[api.prefix]


def placer(layout: Layout, prefix: str, op: str) -> list[str]:
    """Return the functions that compute a message's length and lay it out."""
    name = f"{prefix}_{layout.c_name}"
    arrays = payload_arrays(layout)
    blobs = {blob.name for blob in layout.blobs}
    sizes = "".join(f", uint64_t {array.name}_count" for array in arrays)
    given = "".join(f", {array.name}_count" for array in arrays)
    out = [f"static inline uint64_t {prefix}_bytes_of_{layout.c_name}({sizes[2:] or 'void'})", "{"]
    terms = "".join(f"\n\t\t+ vgpu_padded({array.name}_count * {array.size}ull)" for array in arrays)
    out += [f"\treturn sizeof(struct {name}){terms};", "}", ""]
    out += [f"struct {name}_parts {{", f"\tstruct {name} *message;"]
    out += [f"\t{array.ctype} *{array.name};" for array in arrays]
    out += ["};", ""]
    out += [
        f"static inline struct {name} *{prefix}_place_{layout.c_name}(void *at{sizes},",
        f"\t\t\tstruct {name}_parts *parts)",
        "{",
        f"\tstruct {name} *m = at;",
        "\tuint64_t end = sizeof(*m);",
        "",
        "\tmemset(m, 0, sizeof(*m));",
        f"\tm->header.bytes = (uint32_t){prefix}_bytes_of_{layout.c_name}({given[2:]});",
        f"\tm->header.op = {op};",
        "\tparts->message = m;",
    ]
    for array in arrays:
        out += [
            f"\tparts->{array.name} = ({array.ctype} *)((uint8_t *)at + end);",
            f"\tend += vgpu_padded({array.name}_count * {array.size}ull);",
        ]
        if array.name in blobs:
            out += [f"\tm->{array.count} = {array.name}_count;"]
        elif array.count not in {other.count for other in arrays[: arrays.index(array)]}:
            out += [f"\tm->{array.count} = (uint32_t){array.name}_count;"]
    out += ["\t(void)end;", "\treturn m;", "}", ""]
    return out


def encode_header(api: Description) -> str:
    """Return the text of NAME_encode.h."""
    prefix = f"vgpu_{api.prefix}"
    capital = prefix.upper()
    requests, answers, replies = all_layouts(api)
    out = [LICENCE]
    out += comment(
        "Encoders. bytes_of_NAME gives the length of a message from the numbers of elements of its arrays; place_NAME "
        "lays it out in that many bytes: it sets bytes, op and the counts, clears the other fixed fields, and says "
        "where the arrays are. For a blob that is not inline the number is 0; then its offset and bytes are set "
        "afterwards, else its offset alone."
    )
    out += [f"#ifndef {capital}_ENCODE_H", f"#define {capital}_ENCODE_H", ""]
    out += ["#include <stdint.h>", "#include <string.h>", "", f'#include "{api_name(api)}_messages.h"', ""]
    out += PADDED
    for message, layout in zip(api.requests, requests, strict=True):
        out += placer(layout, prefix, f"{capital}_{message.name}")
    for layout in answers:
        out += placer(layout, prefix, f"{capital}_ANSWER")
    for message, layout in zip(api.replies, replies, strict=True):
        out += placer(layout, prefix, f"{capital}_{message.name}")
    out += [f"#endif /* {capital}_ENCODE_H */", ""]
    return "\n".join(out)
