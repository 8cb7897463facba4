# SPDX-License-Identifier: Apache-2.0
"""Turns described messages into padded fixed fields and arrays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compute.api.model import Array, Blob, Description, Field, Message, Part
from compute.api.opencl_parts import COMMAND

HEADER_BYTES = 16


@dataclass(frozen=True)
class Layout:
    """A message's layout in C: padded `fields`, then `arrays` in order. `fields` include the fields of `blobs`."""

    name: str
    fields: tuple[Field, ...]
    arrays: tuple[Array, ...]
    blobs: tuple[Blob, ...]
    fixed_bytes: int
    doc: str

    @property
    def c_name(self) -> str:
        """Return the name in lower case."""
        return self.name.lower()


def inline_array(blob: Blob) -> Array:
    """Return the array of bytes that holds an inline blob in a message."""
    return Array(blob.name, "uint8_t", f"{blob.name}_bytes", 32 << 10)


def split(parts: Iterable[Part]) -> tuple[list[Field], list[Array], list[Blob]]:
    """Return the fixed fields and the arrays, both in order, and the blobs."""
    fields: list[Field] = []
    arrays: list[Array] = []
    blobs: list[Blob] = []
    for part in parts:
        if isinstance(part, Field):
            fields.append(part)
        elif isinstance(part, Array):
            arrays.append(part)
        else:
            fields += part.fields()
            blobs.append(part)
    return fields, arrays, blobs


def padded(fields: Iterable[Field], at: int) -> tuple[list[Field], int]:
    """Insert reserved fields, so that the compiler adds no padding and the end is a multiple of eight."""
    out: list[Field] = []
    number = 0

    def fill(align: int) -> None:
        nonlocal at, number
        missing = -at % align
        if missing:
            number += 1
            if missing == 4:
                out.append(Field(f"padding{number}", "uint32_t", "reserved"))
            else:
                out.append(Field(f"padding{number}", "uint8_t", "reserved", array=missing))
            at += missing

    for field in fields:
        fill(field.align)
        out.append(field)
        at += field.size
    fill(8)
    return out, at


def layout(name: str, parts: Iterable[Part], doc: str) -> Layout:
    """Lay out one message after its header."""
    fields, arrays, blobs = split(parts)
    fixed, end = padded(fields, HEADER_BYTES)
    return Layout(name, tuple(fixed), tuple(arrays), tuple(blobs), end, doc)


def request(message: Message) -> Layout:
    """Return the layout of a request."""
    parts = (*COMMAND, *message.parts) if message.command else message.parts
    return layout(message.name, parts, message.doc)


def answer(message: Message) -> Layout:
    """Return the layout of a request's answer, with the fields that all answers have."""
    head: tuple[Part, ...] = (
        Field("status", "int32_t", doc="the API's error"),
        Field("answered", "uint32_t", doc="the request's op"),
    )
    return layout(f"{message.name}_ANSWER", (*head, *message.answer), "")


def all_layouts(api: Description) -> tuple[list[Layout], list[Layout], list[Layout]]:
    """Return the layouts of requests, of answers that have more than a status, and of replies."""
    return (
        [request(message) for message in api.requests],
        [answer(message) for message in api.requests if message.answer],
        [layout(message.name, message.parts, message.doc) for message in api.replies],
    )
