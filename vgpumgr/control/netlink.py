# SPDX-License-Identifier: Apache-2.0
"""Client of the kernel module's generic netlink family."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import TracebackType
from typing import Any

from vgpumgr.control import protocol, wire
from vgpumgr.control.attributes import AttributeSet
from vgpumgr.control.family import CONTROL_FAMILY, FAMILY_NAME, GET_FAMILY, Family, decode_family
from vgpumgr.control.model import Gpu, RunHistogram, Slice, Tenant
from vgpumgr.control.protocol import Command, GpuAttribute, SliceAttribute, TenantAttribute
from vgpumgr.errors import (
    ControlProtocolError,
    ControlUnavailableError,
    DumpInterruptedError,
    InvalidFieldError,
    refused,
)

_NETLINK_GENERIC = 16
_SOL_NETLINK = 270
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11

_EINVAL = 22
_ENOENT = 2
_RECEIVE_BYTES = 64 << 10
_DUMP_ATTEMPTS = 8

Values = Mapping[IntEnum, int | str]
Options = Mapping[IntEnum, int | str | None]


class Control:
    """One socket to the kernel module; a context manager.

    Threads may share it: requests are made one at a time. Reading needs no privilege, setting needs CAP_NET_ADMIN.
    Every method raises a RefusedError if the kernel refuses. The error names the attribute at fault, and nothing has
    changed. After the module was loaded again, a new Control is needed.
    """

    def __init__(self) -> None:
        """ControlUnavailableError if the module is not loaded."""
        self._lock = threading.Lock()
        self._sequence = 0
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_GENERIC)
        try:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
            self._socket.bind((0, 0))
            self._family = self.find_family().id
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> "Control":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- reading

    def gpu(self, name: str) -> Gpu:
        """Return the GPU at a PCI address. UnknownGpuError."""
        return _gpu(self._do(Command.GPU_GET, {GpuAttribute.NAME: name}))

    def gpus(self) -> list[Gpu]:
        """Return all GPUs, ordered by name."""
        return [_gpu(found) for found in self._dump(Command.GPU_GET, {})]

    def tenant(self, gpu: str, tenant: str) -> Tenant:
        """Return one tenant on one GPU. UnknownGpuError, NotFoundError."""
        return _tenant(self._do(Command.TENANT_GET, {TenantAttribute.GPU: gpu, TenantAttribute.TENANT: tenant}))

    def tenants(self, gpu: str | None = None) -> list[Tenant]:
        """Return the tenants of one GPU or of all GPUs, also those that only a slice names. UnknownGpuError."""
        return [_tenant(found) for found in self._dump(Command.TENANT_GET, _given({TenantAttribute.GPU: gpu}))]

    def slice(self, uuid: str) -> Slice:
        """Return one slice. NotFoundError."""
        return _slice(self._do(Command.SLICE_GET, {SliceAttribute.UUID: uuid}))

    def slices(self, gpu: str | None = None) -> list[Slice]:
        """Return the slices of one GPU or of all GPUs. UnknownGpuError."""
        return [_slice(found) for found in self._dump(Command.SLICE_GET, _given({SliceAttribute.GPU: gpu}))]

    # ---- setting

    def set_gpu(
        self,
        name: str,
        *,
        policy: str | None = None,
        places: int | None = None,
        reserve_limit_permille: int | None = None,
        max_chunk_us: int | None = None,
        if_generation: int | None = None,
    ) -> int:
        """Change how a GPU is shared; return its new generation.

        `policy`: "best_effort", "equal_share" or "fixed_share". An argument that is None keeps its value, or takes the
        default of a new policy. BusyError if the policy changes while a tenant is configured, or if a value on
        which tenants rely changes; UnknownGpuError, InvalidFieldError, OutOfRangeError, StaleGenerationError,
        NotPermittedError.
        """
        request: Options = {
            GpuAttribute.NAME: name,
            GpuAttribute.POLICY: _number_of(Command.GPU_SET, "policy", protocol.Policy, policy),
            GpuAttribute.PLACES: places,
            GpuAttribute.RESERVE_LIMIT_PERMILLE: reserve_limit_permille,
            GpuAttribute.MAX_CHUNK_US: max_chunk_us,
            GpuAttribute.IF_GENERATION: if_generation,
        }
        return int(self._do(Command.GPU_SET, _given(request))["generation"])

    def adopt_gpu(self, name: str, *, attach: str | None = None) -> None:
        """Share a PCI function that stays bound to its vendor's driver, until that driver releases it.

        `attach`: "any" (default) or "permit". UnknownGpuError if no function has the address. AlreadyExistsError if the
        GPU is already shared. BusyError while VMs keep slices of an earlier adoption open. NotPermittedError. Any other
        RefusedError: the function has no driver, its driver shares it by itself, or it is being bound or unbound
        (EAGAIN).
        """
        request: Options = {
            GpuAttribute.NAME: name,
            GpuAttribute.ATTACH: _number_of(Command.GPU_ADOPT, "attach", protocol.Attach, attach),
        }
        self._do(Command.GPU_ADOPT, _given(request))

    def release_gpu(self, name: str) -> None:
        """Stop sharing an adopted GPU, and remove its tenants.

        BusyError while it has slices. UnknownGpuError, also for a GPU that was not adopted. NotPermittedError.
        """
        self._do(Command.GPU_RELEASE, {GpuAttribute.NAME: name})

    def set_tenant(
        self,
        gpu: str,
        tenant: str,
        *,
        weight: int | None = None,
        timeslice_us: int | None = None,
        cap_us: int | None = None,
        cap_period_us: int | None = None,
        burst_us: int | None = None,
        mode: str | None = None,
        band: str | None = None,
        reserve_us: int | None = None,
        reserve_period_us: int | None = None,
        hold_max_us: int | None = None,
        inversion_permille: int | None = None,
        inversion_burst_us: int | None = None,
        if_generation: int | None = None,
    ) -> int:
        """Configure a tenant on a GPU; return its new generation.

        An argument that is None keeps its value; the first call needs weight and timeslice. `cap_us` 0: no cap. `mode`:
        "fair" or "strict". `band`: "latency" or "fair"; "fair" resets the arguments of the reservation that are None.
        `if_generation`: change the tenant only if this is its generation, 0 only if it is not configured yet
        (StaleGenerationError). Also UnknownGpuError, InvalidFieldError, OutOfRangeError, NoCapacityError,
        NotPermittedError.
        """
        request: Options = {
            TenantAttribute.GPU: gpu,
            TenantAttribute.TENANT: tenant,
            TenantAttribute.WEIGHT: weight,
            TenantAttribute.TIMESLICE_US: timeslice_us,
            TenantAttribute.CAP_US: cap_us,
            TenantAttribute.CAP_PERIOD_US: cap_period_us,
            TenantAttribute.BURST_US: burst_us,
            TenantAttribute.MODE: _number_of(Command.TENANT_SET, "mode", protocol.Mode, mode),
            TenantAttribute.BAND: _number_of(Command.TENANT_SET, "band", protocol.Band, band),
            TenantAttribute.RESERVE_US: reserve_us,
            TenantAttribute.RESERVE_PERIOD_US: reserve_period_us,
            TenantAttribute.HOLD_MAX_US: hold_max_us,
            TenantAttribute.INVERSION_PERMILLE: inversion_permille,
            TenantAttribute.INVERSION_BURST_US: inversion_burst_us,
            TenantAttribute.IF_GENERATION: if_generation,
        }
        return int(self._do(Command.TENANT_SET, _given(request))["generation"])

    def delete_tenant(self, gpu: str, tenant: str) -> None:
        """Remove a tenant. BusyError while slices name it; UnknownGpuError, NotFoundError, NotPermittedError."""
        self._do(Command.TENANT_DEL, {TenantAttribute.GPU: gpu, TenantAttribute.TENANT: tenant})

    def set_slice(
        self,
        uuid: str,
        *,
        tenant: str | None = None,
        weight: int | None = None,
        cap_us: int | None = None,
        cap_period_us: int | None = None,
        burst_us: int | None = None,
    ) -> None:
        """Assign a slice to a tenant ("" to none), and set its weight and cap inside the tenant's group.

        An argument that is None keeps its value. A slice of a tenant that is not configured yet runs nothing.
        BusyError if the tenant of an open slice changes; NotFoundError, InvalidFieldError, OutOfRangeError,
        NoCapacityError, NotPermittedError.
        """
        request: Options = {
            SliceAttribute.UUID: uuid,
            SliceAttribute.TENANT: tenant,
            SliceAttribute.WEIGHT: weight,
            SliceAttribute.CAP_US: cap_us,
            SliceAttribute.CAP_PERIOD_US: cap_period_us,
            SliceAttribute.BURST_US: burst_us,
        }
        self._do(Command.SLICE_SET, _given(request))

    # ---- requests

    def request(self, command: Command, attributes: bytes, *, dump: bool = False) -> list[bytes]:
        """Send encoded attributes; return the attributes of each answer. For requests without a method above."""
        flags = wire.DUMP if dump else wire.ACK
        return self._exchange(command, flags, attributes)[0]

    def _do(self, command: Command, values: Values) -> dict[str, Any]:
        attributes = _encode(command, values)
        answers = self.request(command, attributes)
        if len(answers) > 1:
            raise ControlProtocolError(f"{_operation(command)}: {len(answers)} answers to a request about one object")
        return decode_values(protocol.ATTRIBUTES[command], answers[0]) if answers else {}

    def _dump(self, command: Command, values: Values) -> list[dict[str, Any]]:
        attributes = _encode(command, values)
        for _ in range(_DUMP_ATTEMPTS):
            answers, interrupted = self._exchange(command, wire.DUMP, attributes)
            if not interrupted:
                return [decode_values(protocol.ATTRIBUTES[command], found) for found in answers]
        raise DumpInterruptedError(f"{_operation(command)}: the list changed during each of {_DUMP_ATTEMPTS} attempts")

    def _exchange(self, command: Command, flags: int, attributes: bytes) -> tuple[list[bytes], bool]:
        """Return the attributes of each answer, and whether any message says that the list was interrupted."""
        with self._lock:
            answers, interrupted, status = self._transact(
                self._family, flags, command, protocol.FAMILY_VERSION, attributes
            )
        if status.errno:
            raise _refusal(command, status, attributes)
        return answers, interrupted

    def _transact(
        self, family: int, flags: int, command: int, version: int, attributes: bytes
    ) -> tuple[list[bytes], bool, wire.Status]:
        self._sequence += 1
        self._socket.send(wire.encode_request(family, flags, self._sequence, command, version, attributes))
        answers: list[bytes] = []
        interrupted = False
        while True:
            datagram, _, received, _ = self._socket.recvmsg(_RECEIVE_BYTES)
            if received & socket.MSG_TRUNC:
                raise ControlProtocolError("an answer was longer than the receive buffer")
            for message in wire.decode_messages(datagram):
                if message.sequence != self._sequence:
                    continue  # answers an earlier request, whose caller an exception interrupted
                interrupted |= bool(message.flags & wire.DUMP_INTERRUPTED)
                if message.type in (wire.ERROR, wire.DONE):
                    return answers, interrupted, wire.decode_status(message)
                if message.type == wire.OVERRUN:
                    raise ControlProtocolError("answers were lost")
                answers.append(wire.decode_generic(message)[1])

    def find_family(self) -> Family:
        """Return the family's numbers, which each load of the module assigns anew. ControlUnavailableError."""
        name = wire.encode_attribute(FAMILY_NAME, wire.encode_value("string", protocol.FAMILY_NAME))
        with self._lock:
            answers, _, status = self._transact(CONTROL_FAMILY, wire.ACK, GET_FAMILY, 1, name)
        if status.errno == _ENOENT:
            raise ControlUnavailableError(f"no netlink family {protocol.FAMILY_NAME}: vgpumgr.ko is not loaded")
        if status.errno:
            raise refused(operation="find the netlink family", errno=status.errno, reason=status.reason)
        return decode_family(answers[0])


def _number_of(command: Command, field: str, words: type[IntEnum], word: str | None) -> int | None:
    """Return the number of an enum's word; InvalidFieldError for an unknown word."""
    if word is None:
        return None
    for member in words:
        if member.name.lower() == word:
            return member.value
    known = ", ".join(member.name.lower() for member in words)
    raise InvalidFieldError(
        operation=_operation(command), errno=_EINVAL, field=field, reason=f"{word!r} is not one of {known}"
    )


def _words(values: dict[str, Any], words: Mapping[str, type[IntEnum]]) -> None:
    """Replace numbers by the names in their enums. Members that an older module does not report stay absent."""
    for name, numbers in words.items():
        if name in values:
            values[name] = numbers(values[name]).name.lower()


def _given(values: Options) -> dict[IntEnum, int | str]:
    return {number: value for number, value in values.items() if value is not None}


def _operation(command: Command) -> str:
    return command.name.lower().replace("_", "-")


def _encode(command: Command, values: Values) -> bytes:
    attributes = protocol.ATTRIBUTES[command]
    encoded = []
    for number, value in values.items():
        try:
            payload = wire.encode_value(attributes.type_of(number), value)
        except ValueError as error:
            field = attributes.field_of(number)
            raise InvalidFieldError(
                operation=_operation(command), errno=_EINVAL, field=field, reason=str(error)
            ) from error
        encoded.append(wire.encode_attribute(number, payload))
    return b"".join(encoded)


def decode_values(attributes: AttributeSet, data: bytes) -> dict[str, Any]:
    """Return values by the header's names in lower case. Unknown attributes of a newer module are left out."""
    values: dict[str, Any] = {}
    for number, payload in wire.decode_attributes(data):
        kind = attributes.type_of(number)
        if kind in ("", "pad"):
            continue
        name = attributes.numbers(number).name.lower()
        if kind == "nest":
            values.setdefault(name, []).append(decode_values(protocol.RUN_LENGTH, payload))
        else:
            values[name] = wire.decode_value(kind, payload)
    return values


def _refusal(command: Command, status: wire.Status, request: bytes) -> Exception:
    if status.errno == _ENOENT and not status.reason:  # without a reason, netlink itself says that the family is gone
        return ControlUnavailableError("the netlink family is gone: vgpumgr.ko was unloaded")
    attributes = protocol.ATTRIBUTES[command]
    number = status.missing
    if status.offset is not None:
        number = next(
            (n for at, n, _ in wire.locate_attributes(request) if at + wire.BODY_OFFSET == status.offset), None
        )
    reason = status.reason
    if number is None:  # a refusal of a list names the attribute only in its text
        number = next((n for n in attributes.numbers if reason.startswith(f"{attributes.field_of(n)}:")), None)
    if status.limits:
        reason += f" ({status.limits[0]}..{status.limits[1]})"
    return refused(
        operation=_operation(command),
        errno=status.errno,
        field="" if number is None else attributes.field_of(number),
        reason=reason,
    )


def _gpu(values: dict[str, Any]) -> Gpu:
    with _complete():
        values["memory_total_bytes"] = values.pop("memory_total")
        values["memory_reserved_bytes"] = values.pop("memory_reserved")
        _words(values, {"attach": protocol.Attach, "policy": protocol.Policy})
        return Gpu(**values)


def _tenant(values: dict[str, Any]) -> Tenant:
    with _complete():
        values["name"] = values.pop("tenant")
        values.setdefault("configured", False)
        _words(values, {"mode": protocol.Mode, "band": protocol.Band})
        values.setdefault("throttled", False)
        buckets = values.pop("run_length", [])
        values["histogram"] = RunHistogram(tuple((bucket["start_ns"], bucket["count"]) for bucket in buckets))
        return Tenant(**values)


def _slice(values: dict[str, Any]) -> Slice:
    with _complete():
        values.setdefault("open", False)
        values.setdefault("scheduled", False)
        values.setdefault("throttled", False)
        return Slice(**values)


@contextmanager
def _complete() -> Iterator[None]:
    """Raise ControlProtocolError for an answer that lacks a member or has an undefined value."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise ControlProtocolError(f"an incomplete answer: {error}") from error
