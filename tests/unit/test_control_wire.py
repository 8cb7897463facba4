# SPDX-License-Identifier: Apache-2.0
"""Netlink messages, written by hand from netlink.h and genetlink.h, little endian."""

import errno
import sys

import pytest

from vgpumgr.control import netlink, protocol, wire
from vgpumgr.control.protocol import Command, GpuAttribute, TenantAttribute
from vgpumgr.errors import ControlProtocolError, InvalidFieldError, OutOfRangeError, UnknownGpuError

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the byte strings below are little endian")

GPU_ATTRIBUTE = bytes.fromhex("1100 0200") + b"0000:00:10.0\0" + b"\0\0\0"
REQUEST_HEADER = bytes.fromhex("28000000 1c00 0500 07000000 00000000")  # the bytes that the kernel quotes in an answer


def message(kind: int, flags: int, body: bytes) -> wire.Message:
    return wire.Message(type=kind, flags=flags, sequence=7, body=body)


# ---- encoding


def test_a_string_attribute_ends_with_nul_and_is_padded() -> None:
    assert wire.encode_attribute(2, wire.encode_value("string", "0000:00:10.0")) == GPU_ATTRIBUTE


def test_integers_have_the_width_of_their_type() -> None:
    assert wire.encode_attribute(4, wire.encode_value("u32", 300)) == bytes.fromhex("0800 0400 2c010000")
    assert wire.encode_attribute(9, wire.encode_value("u64", 5)) == bytes.fromhex("0c00 0900 0500000000000000")


@pytest.mark.parametrize(
    ("kind", "value"), [("u32", -1), ("u32", 1 << 32), ("u64", -1), ("u32", "many"), ("string", "a\0b")]
)
def test_what_does_not_fit_is_a_value_error(kind: str, value: int | str) -> None:
    with pytest.raises(ValueError, match=r"NUL|is not a"):
        wire.encode_value(kind, value)


def test_a_request_counts_its_length_and_names_command_and_version() -> None:
    request = wire.encode_request(0x1C, wire.ACK, 7, Command.GPU_GET, 1, GPU_ATTRIBUTE)
    assert request == bytes.fromhex("28000000 1c00 0500 07000000 00000000  01 01 0000") + GPU_ATTRIBUTE


def test_a_value_that_cannot_be_sent_names_its_field() -> None:
    with pytest.raises(InvalidFieldError) as caught:
        netlink._encode(Command.TENANT_SET, {TenantAttribute.WEIGHT: -1})
    assert caught.value.field == "weight"
    assert str(caught.value) == "tenant-set: weight: -1 is not a u32 [EINVAL]"


# ---- decoding


def test_a_datagram_is_taken_apart_into_messages() -> None:
    first = bytes.fromhex("15000000 1c00 0200 07000000 39300000  01 01 0000 aa") + b"\0\0\0"
    second = bytes.fromhex("14000000 0300 0200 07000000 39300000  00000000")
    one, two = wire.decode_messages(first + second)
    assert (one.type, one.flags, one.sequence) == (0x1C, 2, 7)
    assert wire.decode_generic(one) == (1, b"\xaa")
    assert two.type == wire.DONE
    assert wire.decode_status(two).errno == 0


def test_the_nested_bit_is_not_part_of_an_attribute_number() -> None:
    assert list(wire.decode_attributes(bytes.fromhex("0800 1680 0400 0200"))) == [(22, bytes.fromhex("04000200"))]


@pytest.mark.parametrize("text", ["0000 0100", "0300 0100", "0900 0100 00000000", "0400"])
def test_a_broken_attribute_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ControlProtocolError):
        list(wire.decode_attributes(bytes.fromhex(text)))


@pytest.mark.parametrize("text", ["0f000000 0300 0000 00000000 00000000", "14000000 0300 0000 00000000 00000000", "14"])
def test_a_broken_message_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ControlProtocolError):
        list(wire.decode_messages(bytes.fromhex(text)))


def test_an_integer_of_another_width_is_a_protocol_error() -> None:
    with pytest.raises(ControlProtocolError, match="u32 of 8 bytes"):
        wire.decode_value("u32", bytes(8))


def test_a_tenant_is_decoded_with_its_histogram_and_without_what_is_unknown() -> None:
    gpu = GPU_ATTRIBUTE
    name = bytes.fromhex("0600 0300") + b"b\0" + b"\0\0"
    configured = bytes.fromhex("0400 0b00")
    generation = bytes.fromhex("0c00 0a00 0200000000000000")
    slices = bytes.fromhex("0800 0c00 01000000")
    weight = bytes.fromhex("0800 0400 2c010000")
    lag = bytes.fromhex("0c00 1500 feffffffffffffff")
    bucket = bytes.fromhex("1c00 1680  0c00 0200 0004000000000000  0c00 0300 0900000000000000")
    unknown = bytes.fromhex("0800 e700 01000000")
    values = netlink.decode_values(
        protocol.TENANT, gpu + name + generation + configured + slices + weight + lag + bucket + unknown
    )
    tenant = netlink._tenant(values)
    assert (tenant.gpu, tenant.name, tenant.configured, tenant.generation) == ("0000:00:10.0", "b", True, 2)
    assert (tenant.weight, tenant.slices, tenant.lag_ns) == (300, 1, -2)
    assert tenant.histogram.buckets == ((1024, 9),)
    assert tenant.histogram.total == 9


def test_an_answer_without_what_it_must_have_is_a_protocol_error() -> None:
    with pytest.raises(ControlProtocolError, match="incomplete"):
        netlink._gpu(netlink.decode_values(protocol.GPU, GPU_ATTRIBUTE))


# ---- extended ACKs


def test_a_refusal_carries_the_kernels_words_and_the_attribute_at_fault() -> None:
    request = wire.encode_attribute(GpuAttribute.NAME, wire.encode_value("string", "0000:00:10.0"))
    body = bytes.fromhex("edffffff") + REQUEST_HEADER  # -ENODEV
    body += bytes.fromhex("0900 0100") + b"gone\0" + b"\0\0\0" + bytes.fromhex("0800 0200 14000000")
    status = wire.decode_status(message(wire.ERROR, wire.CAPPED | wire.ACK_TLVS, body))
    assert status == wire.Status(errno=errno.ENODEV, reason="gone", offset=20)
    error = netlink._refusal(Command.GPU_GET, status, request)
    assert isinstance(error, UnknownGpuError)
    assert (error.errno, error.field, error.reason) == (errno.ENODEV, "name", "gone")
    assert str(error) == "gpu-get: name: gone [ENODEV]"


def test_the_limits_of_a_range_are_told() -> None:
    request = wire.encode_attribute(TenantAttribute.WEIGHT, wire.encode_value("u32", 0))
    policy = bytes.fromhex("0c00 0400 0100000000000000  0c00 0500 1027000000000000")
    body = bytes.fromhex("deffffff") + REQUEST_HEADER + bytes.fromhex("0800 0200 14000000")
    body += bytes.fromhex("0700 0100") + b"no\0" + b"\0" + bytes.fromhex("1c00 0480") + policy
    error = netlink._refusal(
        Command.TENANT_SET, wire.decode_status(message(wire.ERROR, wire.CAPPED | wire.ACK_TLVS, body)), request
    )
    assert isinstance(error, OutOfRangeError)
    assert str(error) == "tenant-set: weight: no (1..10000) [ERANGE]"


def test_an_attribute_that_is_missing_is_named() -> None:
    body = bytes.fromhex("eaffffff") + REQUEST_HEADER + bytes.fromhex("0800 0500 03000000")
    status = wire.decode_status(message(wire.ERROR, wire.CAPPED | wire.ACK_TLVS, body))
    error = netlink._refusal(Command.TENANT_SET, status, b"")
    assert isinstance(error, InvalidFieldError)
    assert error.field == "tenant"


def test_a_refusal_that_quotes_the_whole_request_is_understood() -> None:
    body = bytes.fromhex("edffffff") + REQUEST_HEADER + bytes.fromhex("01 01 0000") + GPU_ATTRIBUTE
    body += bytes.fromhex("0900 0100") + b"gone\0" + b"\0\0\0"
    assert wire.decode_status(message(wire.ERROR, wire.ACK_TLVS, body)).reason == "gone"


def test_the_end_of_a_list_may_carry_an_error_too() -> None:
    body = bytes.fromhex("edffffff 0900 0100") + b"gone\0" + b"\0\0\0"
    status = wire.decode_status(message(wire.DONE, wire.ACK_TLVS, body))
    assert (status.errno, status.reason) == (errno.ENODEV, "gone")


def test_a_refusal_without_an_offset_is_searched_for_the_attribute() -> None:
    status = wire.Status(errno=errno.ENODEV, reason="gpu: there is no such GPU")
    error = netlink._refusal(Command.TENANT_GET, status, b"")
    assert isinstance(error, UnknownGpuError)
    assert error.field == "gpu"
    assert str(error) == "tenant-get: gpu: there is no such GPU [ENODEV]"
