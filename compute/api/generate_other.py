# SPDX-License-Identifier: Apache-2.0
"""Generates a described API's refused entry points, its support table and the grammar of its messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from compute.api.generate_c import LICENCE, payload_arrays
from compute.api.layout import HEADER_BYTES, Layout, all_layouts

if TYPE_CHECKING:
    from compute.api.model import Description, Function


def refusal(function: Function) -> list[str]:
    """Return an entry point that fails and logs that once."""
    returns = {"cl_int": f"\treturn {function.error};", "void": ""}.get(function.result, "\treturn NULL;")
    error = ["\tif (error)", f"\t\t*error = {function.error};"] if "cl_int *error" in function.parameters else []
    return [
        (
            f"static {function.result}{'' if function.result.endswith('*') else ' '}CL_API_CALL refused_{function.name}"
            f"({function.parameters})"
        ),
        "{",
        f'\tvgpu_cl_log_refused("{function.name}", "{function.note.split(":")[0].split(";")[0]}");',
        *error,
        *([returns] if returns else []),
        "}",
        "",
    ]


def stubs_header(api: Description) -> str:
    """Return the text of NAME_stubs.h: the refused functions."""
    out = [LICENCE, "#pragma GCC diagnostic push", '#pragma GCC diagnostic ignored "-Wunused-parameter"', ""]
    for function in api.functions:
        if function.how == "refused":
            out += refusal(function)
    out += ["#pragma GCC diagnostic pop", ""]
    return "\n".join(out)


def functions_header(api: Description) -> str:
    """Return the text of NAME_functions.h: the list of the dispatch table's entries."""
    out = [
        LICENCE,
        "/* FULL(name) is implemented, REFUSED(name) fails, EMPTY(name) is no entry; in the table's order. */",
    ]
    out += ["#define VGPU_CL_FUNCTIONS(FULL, REFUSED, EMPTY) \\"]
    words = {"remote": "FULL", "local": "FULL", "refused": "REFUSED", "empty": "EMPTY"}
    out += [f"\t{words[function.how]}({function.name}) \\" for function in api.functions]
    out += ["\t/* end */", ""]
    return "\n".join(out)


def support_table(api: Description) -> str:
    """Return the support table, a fragment of the documentation in Markdown."""
    words = {"remote": "yes", "local": "yes, in the client", "refused": "no", "empty": "no"}
    out = ["<!-- Written by compute/api/generate.py; do not edit. -->", ""]
    out += ["| function | since | works | what it does |", "|---|---|---|---|"]
    for function in api.functions:
        if function.how == "empty":
            continue
        texts = [", ".join(f"`{message}`" for message in function.messages)] if function.messages else []
        if function.error:
            texts.append(f"fails with `{function.error}`")
        if function.note:
            texts.append(function.note)
        out += [f"| `{function.name}` | {function.since} | {words[function.how]} | {'; '.join(texts)} |"]
    absent = ", ".join(f"`{function.name}`" for function in api.functions if function.how == "empty")
    out += [
        "",
        f"Not in the table of a program's loader, because sharing with other APIs is not offered: {absent}.",
        "",
    ]
    return "\n".join(out)


def message_grammar(number: int, layout: Layout, command: bool) -> dict[str, Any]:
    """Return the description of a message for a fuzzer."""
    at = HEADER_BYTES
    fields = []
    for field in layout.fields:
        fields.append(
            {
                "name": field.name,
                "offset": at,
                "bytes": field.size,
                "elements": max(field.array, 1),
                "role": field.role,
                "object": field.object,
            }
        )
        at += field.size
    return {
        "name": layout.name,
        "op": number,
        "command": command,
        "fixed_bytes": layout.fixed_bytes,
        "fields": fields,
        "arrays": [
            {
                "name": array.name,
                "count": array.count,
                "most": array.most,
                "element_bytes": array.size,
                "role": array.role,
                "object": array.object,
                "inline_of": array.name if any(blob.name == array.name for blob in layout.blobs) else "",
            }
            for array in payload_arrays(layout)
        ],
        "blobs": [
            {
                "name": blob.name,
                "inline": blob.inline,
                "parsed": blob.parsed,
                "written": blob.written,
                "absent": blob.absent,
            }
            for blob in layout.blobs
        ],
    }


def grammar(api: Description) -> str:
    """Return the grammar of requests and replies, in JSON."""
    requests, _, replies = all_layouts(api)
    return json.dumps(
        {
            "constants": {constant.name: constant.value for constant in api.constants},
            "kinds": {name: value for name, value, _ in api.enumerations[0].values},
            "structures": {
                element.name: [
                    {"name": field.name, "bytes": field.size, "elements": max(field.array, 1)}
                    for field in element.fields
                ]
                for element in api.structures
            },
            "requests": [
                message_grammar(message.number, layout, message.command)
                for message, layout in zip(api.requests, requests, strict=True)
            ],
            "replies": [
                message_grammar(message.number, layout, False)
                for message, layout in zip(api.replies, replies, strict=True)
            ],
        },
        indent=1,
    )
