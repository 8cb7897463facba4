# SPDX-License-Identifier: Apache-2.0
"""Netlink messages as bytes: headers, attributes and extended ACKs.

Formats: include/uapi/linux/netlink.h and genetlink.h of the kernel. All data is in the machine's byte order and padded
to 4 bytes.
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from vgpumgr.errors import ControlProtocolError

# flags of a message
REQUEST = 0x01
ACK = 0x04
DUMP_INTERRUPTED = 0x10
ACK_TLVS = 0x200
CAPPED = 0x100
DUMP = 0x300

# types of a message
ERROR = 2
DONE = 3
OVERRUN = 4

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_GENERIC = struct.Struct("=BBH")  # command, version, reserved
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_NUMBER_MASK = 0x3FFF  # masks an attribute's type; the bits above mean nested and byte order

BODY_OFFSET = _HEADER.size + _GENERIC.size

_INTEGERS = {"u32": struct.Struct("=I"), "u64": struct.Struct("=Q"), "s64": struct.Struct("=q")}


@dataclass(frozen=True, kw_only=True)
class Message:
    """One received message. `body`: everything after its header."""

    type: int
    flags: int
    sequence: int
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a request ended. `errno`: 0 or positive.

    `reason`: the kernel's text. `offset`: position of the attribute at fault in the request. `missing`: number of an
    attribute that the request lacks. `limits`: least and greatest value, if a value was out of range.
    """

    errno: int
    reason: str = ""
    offset: int | None = None
    missing: int | None = None
    limits: tuple[int, int] | None = None


def _padded(length: int) -> int:
    return (length + 3) & ~3


def encode_attribute(number: int, payload: bytes) -> bytes:
    """Return one attribute with its padding."""
    length = _ATTRIBUTE.size + len(payload)
    return _ATTRIBUTE.pack(length, number) + payload.ljust(_padded(len(payload)), b"\0")


def encode_value(kind: str, value: int | str) -> bytes:
    """Return a payload of type `kind` (a word of YNL). ValueError if `value` does not fit."""
    if kind == "string":
        text = str(value).encode()
        if b"\0" in text:
            raise ValueError("contains a NUL")
        return text + b"\0"
    try:
        return _INTEGERS[kind].pack(value)
    except struct.error as error:
        raise ValueError(f"{value!r} is not a {kind}") from error


def decode_value(kind: str, payload: bytes) -> int | str | bool | bytes:
    """Return the value of a payload of type `kind`; the bytes themselves for other types."""
    if kind == "string":
        return payload.rstrip(b"\0").decode(errors="replace")
    if kind == "flag":
        return True
    if kind not in _INTEGERS:
        return payload
    integer = _INTEGERS[kind]
    if len(payload) != integer.size:
        raise ControlProtocolError(f"a {kind} of {len(payload)} bytes")
    value: int = integer.unpack(payload)[0]
    return value


def decode_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and payload of each attribute."""
    for _, number, payload in locate_attributes(data):
        yield number, payload


def locate_attributes(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset in `data`, number and payload of each attribute."""
    at = 0
    while at < len(data):
        if len(data) - at < _ATTRIBUTE.size:
            raise ControlProtocolError("an attribute's header is cut off")
        length, number = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            raise ControlProtocolError(f"an attribute claims {length} bytes of {len(data) - at}")
        yield at, number & _NUMBER_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += _padded(length)


def encode_request(family: int, flags: int, sequence: int, command: int, version: int, attributes: bytes) -> bytes:
    """Return a generic netlink request."""
    length = BODY_OFFSET + len(attributes)
    header = _HEADER.pack(length, family, flags | REQUEST, sequence, 0)
    return header + _GENERIC.pack(command, version, 0) + attributes


def decode_messages(datagram: bytes) -> Iterator[Message]:
    """Yield the messages of one datagram."""
    at = 0
    while at < len(datagram):
        if len(datagram) - at < _HEADER.size:
            raise ControlProtocolError("a message's header is cut off")
        length, kind, flags, sequence, _ = _HEADER.unpack_from(datagram, at)
        if length < _HEADER.size or at + length > len(datagram):
            raise ControlProtocolError(f"a message claims {length} bytes of {len(datagram) - at}")
        yield Message(type=kind, flags=flags, sequence=sequence, body=datagram[at + _HEADER.size : at + length])
        at += _padded(length)


def decode_generic(message: Message) -> tuple[int, bytes]:
    """Return the command of a generic netlink message and its attributes."""
    if len(message.body) < _GENERIC.size:
        raise ControlProtocolError("a generic netlink header is cut off")
    return message.body[0], message.body[_GENERIC.size :]


def decode_status(message: Message) -> Status:
    """Return the status in an ERROR or DONE message."""
    if len(message.body) < 4:
        if message.type == DONE:
            return Status(errno=0)
        raise ControlProtocolError("an error without a number")
    number: int = struct.unpack_from("=i", message.body)[0]
    if not message.flags & ACK_TLVS:
        return Status(errno=-number)
    at = 4
    if message.type == ERROR:  # the request follows, either its header or all of it
        if len(message.body) < 4 + _HEADER.size:
            raise ControlProtocolError("an error without the request that it answers")
        length: int = struct.unpack_from("=I", message.body, 4)[0]
        at += _HEADER.size if number == 0 or message.flags & CAPPED else _padded(length)
    return _decode_extended_ack(-number, message.body[at:])


def _decode_extended_ack(errno: int, data: bytes) -> Status:
    found = dict(decode_attributes(data))
    limits = dict(decode_attributes(found.get(4, b"")))  # NLMSGERR_ATTR_POLICY
    least, greatest = limits.get(4, b""), limits.get(5, b"")  # NL_POLICY_TYPE_ATTR_{MIN,MAX}_VALUE_U
    return Status(
        errno=errno,
        reason=str(decode_value("string", found.get(1, b""))),
        offset=_number(found.get(2)),
        missing=_number(found.get(5)),
        limits=(int.from_bytes(least, sys.byteorder), int.from_bytes(greatest, sys.byteorder)) if greatest else None,
    )


def _number(payload: bytes | None) -> int | None:
    if payload is None:
        return None
    if len(payload) != 4:
        raise ControlProtocolError(f"a u32 of {len(payload)} bytes")
    return int.from_bytes(payload, sys.byteorder)
