# SPDX-License-Identifier: Apache-2.0
"""The classes that describe an API's messages.

A message has a header, fixed fields in a fixed order, and arrays after them. Everything is little-endian and naturally
aligned. Where that needs padding, the generator inserts reserved fields, which are zero. Each array starts at a
multiple of eight bytes. The lengths of arrays are fields, so the length of a message follows from its fields.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8}


@dataclass(frozen=True)
class Field:
    """A fixed field.

    `role` says what the decoder checks and what a fuzzer may put there: `value` (anything), `new` (a handle that the
    client has chosen), `new_or_none` (the same, or 0), `handle` (an existing handle), `optional` (an existing handle,
    or 0), `device` (index of a device), `kind` (enum vgpu_cl_kind), `count` (elements of an array), `bytes`, `offset`,
    `flags`, `reserved` (0).
    `object` names the kind of a handle. `array` is the number of elements if the field is an array itself.
    """

    name: str
    ctype: str
    role: str = "value"
    object: str = ""
    array: int = 0
    doc: str = ""

    @property
    def size(self) -> int:
        """Return the size of the field in bytes."""
        return SIZES[self.ctype] * max(self.array, 1)

    @property
    def align(self) -> int:
        """Return the alignment of the field in bytes."""
        return SIZES[self.ctype]


@dataclass(frozen=True)
class Array:
    """Elements after the fixed fields. `count` names the field with their number, which is at most `most`.

    `ctype` is a type of SIZES or a struct of the API that takes `element_bytes`. `role` and `object` are those of each
    element.
    """

    name: str
    ctype: str
    count: str
    most: int
    element_bytes: int = 0
    role: str = "value"
    object: str = ""
    doc: str = ""

    @property
    def size(self) -> int:
        """Return the size of one element in bytes."""
        return self.element_bytes or SIZES[self.ctype]


@dataclass(frozen=True)
class Blob:
    """Bytes of any length: two fields, NAME_offset and NAME_bytes, and perhaps an array of bytes.

    With `inline` the offset may be VGPU_CL_INLINE; then the bytes are in the message. Otherwise they are in the bulk
    area at that offset. `parsed` means that a library parses them, so the child must copy them first; other blobs are
    opaque and used in place. `written` means that the child writes them. With `absent` the offset may be
    VGPU_CL_ABSENT, which means that there are no bytes.
    """

    name: str
    inline: bool = True
    parsed: bool = False
    written: bool = False
    absent: bool = False
    doc: str = ""

    def fields(self) -> list[Field]:
        """Return the two fixed fields."""
        return [
            Field(f"{self.name}_offset", "uint64_t", "offset", doc=self.doc),
            Field(f"{self.name}_bytes", "uint64_t", "bytes"),
        ]


Part = Field | Array | Blob


@dataclass(frozen=True)
class Message:
    """A message. If a request's answer has more than a status, `answer` describes the rest.

    A `command` goes to a queue, and starts with the parts that all commands share.
    """

    name: str
    number: int
    parts: tuple[Part, ...] = ()
    answer: tuple[Part, ...] = ()
    command: bool = False
    doc: str = ""


@dataclass(frozen=True)
class Function:
    """An entry point of the API, in the order of the loader's dispatch table.

    `how` is `remote` (messages are sent), `local` (the client answers), `refused` (fails with `error` and one line in
    the log) or `empty` (no entry in the table). `creates` and `destroys` name kinds of objects. `parameters` is the C
    parameter list, which only refused functions need. `result` is the C type returned.
    """

    name: str
    since: str
    how: str
    messages: tuple[str, ...] = ()
    creates: str = ""
    destroys: str = ""
    result: str = "cl_int"
    parameters: str = ""
    error: str = ""
    note: str = ""


@dataclass(frozen=True)
class Constant:
    """A number that both sides use."""

    name: str
    value: str
    doc: str = ""


@dataclass(frozen=True)
class Enumeration:
    """Numbers with names; the values are frozen."""

    name: str
    values: tuple[tuple[str, int, str], ...]
    doc: str = ""


@dataclass(frozen=True)
class Structure:
    """An element of an array. It has natural alignment and no padding."""

    name: str
    fields: tuple[Field, ...]
    doc: str = ""


@dataclass(frozen=True)
class Description:
    """A complete API."""

    prefix: str
    constants: tuple[Constant, ...]
    enumerations: tuple[Enumeration, ...]
    structures: tuple[Structure, ...]
    requests: tuple[Message, ...]
    replies: tuple[Message, ...]
    functions: tuple[Function, ...]
