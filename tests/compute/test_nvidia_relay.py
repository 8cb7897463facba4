# SPDX-License-Identifier: Apache-2.0
"""The relay makes a child's calls to NVIDIA's driver on copies, so it makes exactly the call that was checked."""

import errno
import os
import platform
import shutil
import signal
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.compute.driver_rig import (
    ALLOC,
    CHANNEL,
    CHECK_VERSION,
    CONTROL,
    DEVICE,
    DISABLE,
    DUP,
    GROUP,
    I386,
    NAME,
    NO_CLASS,
    NO_CLIENT,
    NO_PARENT,
    NO_ROOM,
    NO_SUCH,
    NOT_PERMITTED,
    OK,
    OTHER,
    ROOT_CLIENT,
    SCHEDULE,
    SET_TIMESLICE,
    SUBDEVICE,
    X32,
    XFER,
    DriverChild,
    Gpu,
    number,
    run_driver_slice,
    run_gpu,
)
from tests.compute.executor_rig import DONE, FREEZE, Slice


@pytest.fixture
def tenant(tmp_path: Path, gpu: Gpu, driver_child: Path) -> Iterator[Slice]:
    with run_driver_slice(tmp_path, gpu, driver_child) as slice_:
        yield slice_


@pytest.fixture
def child(tenant: Slice) -> DriverChild:
    return DriverChild(tenant.start().window)


def commands(gpu: Gpu) -> list[int]:
    """Return the control calls that reached the driver. Ends the driver."""
    return [int(entry["cmd"]) for entry in gpu.fake.log() if entry["call"] == "control"]


def test_a_context_begins_and_the_driver_answers(child: DriverChild) -> None:
    answer = child.control(child.context.subdevice, NAME, bytes(132))
    assert (answer.result, answer.word(28)) == (0, OK)


def test_a_command_that_changes_while_it_is_looked_at_is_done_as_it_was_allowed(child: DriverChild, gpu: Gpu) -> None:
    timeslice = struct.pack("=Q", 1000000)
    answer = child.race(child.context.group, 0xA06C0104, SET_TIMESLICE, timeslice, times=2000)
    assert answer.result == 0
    assert answer.ok + answer.refused == 2000
    # The relay saw both commands: it allowed some calls and refused others.
    assert answer.ok > 0
    assert answer.refused > 0
    reached = commands(gpu)
    assert SET_TIMESLICE not in reached
    assert reached.count(0xA06C0104) == answer.ok


@pytest.mark.parametrize(
    ("command", "parameters"),
    [
        (SCHEDULE, bytes((0, 0, 0))),
        (SCHEDULE, bytes((1, 0, 0))),  # a second time
        (SCHEDULE, bytes((1, 0, 1))),
        (0xA06C0102, struct.pack("=I", 9)),
        (SET_TIMESLICE, struct.pack("=Q", 1000000)),
        (0xA06C0105, bytes(8)),
        (0xA06C0107, struct.pack("=I", 2)),
        (0xA06C0110, bytes(4)),
        (0xA06C0202, struct.pack("=Q", 1)),
    ],
)
def test_what_a_group_gets_is_not_the_child_s_to_say(
    child: DriverChild, gpu: Gpu, command: int, parameters: bytes
) -> None:
    answer = child.control(child.context.group, command, parameters)
    assert (answer.result, answer.word(28)) == (0, NOT_PERMITTED)
    # The driver received only the first scheduling, which the child made at its start.
    assert commands(gpu) == [SCHEDULE]


@pytest.mark.parametrize("command", [0xA06F0103, 0xA06F0109, 0xA06F0111, 0xA06F0112, 0x906F0102], ids=hex)
def test_nor_what_a_channel_gets(child: DriverChild, gpu: Gpu, command: int) -> None:
    first = child.control(child.context.channel, command, bytes((0, 0, 0)))
    assert (first.result, first.word(28)) == (0, NOT_PERMITTED)
    assert commands(gpu) == [SCHEDULE]


@pytest.mark.parametrize(
    "command",
    [DISABLE, 0x20801110, 0x20801115, 0x20801117, 0x20801119, 0x20801121, 0x2080200A, 0x20800194, 0x12345678],
    ids=hex,
)
def test_nor_what_the_gpu_does(child: DriverChild, gpu: Gpu, command: int) -> None:
    answer = child.control(child.context.subdevice, command, bytes(536))
    assert (answer.result, answer.word(28)) == (0, NOT_PERMITTED)
    assert commands(gpu) == [SCHEDULE]


@pytest.mark.parametrize(
    "command",
    [0x20800407, 0x20800513, 0x20801702, 0x2080018D, 0x2080018E, 0x20802096, 0x801108, 0x801909, 0x3D05, 0x0D04],
    ids=hex,
)
def test_nor_what_others_have_of_it(child: DriverChild, gpu: Gpu, command: int) -> None:
    """Libraries ask for the GPU's timer, temperature and clocks, its processes, and memory for another process."""
    answer = child.control(child.context.subdevice, command, bytes(64))
    assert (answer.result, answer.word(28)) == (0, NOT_PERMITTED)
    assert commands(gpu) == [SCHEDULE]


QUESTIONS = [
    *(0x012B, 0x0204, 0x0288, 0x0289, 0x0290, 0x801806, 0x80180D),
    *(0x20800133, 0x2080013F, 0x2080014B, 0x20800156, 0x20800157, 0x2080019F, 0x2080123C, 0x20801357, 0x20801358),
    *(0x20802068, 0x20803125, 0xCB33010C),
]


def test_what_libraries_ask_reaches_the_driver(child: DriverChild, gpu: Gpu) -> None:
    for command in QUESTIONS:
        assert child.control(child.context.subdevice, command, bytes(64)).result == 0
    assert commands(gpu) == [SCHEDULE, *QUESTIONS]


def preemption(channel: int, mode: int, flags: int = 1) -> bytes:
    return struct.pack("=IIIIIxxxxQ", flags, channel, 0, mode, 0, 0)


def test_kernels_stay_preemptible(child: DriverChild, gpu: Gpu) -> None:
    for mode, status in ((0, NOT_PERMITTED), (1, NOT_PERMITTED), (2, OK)):
        answer = child.control(child.context.subdevice, 0x20801210, preemption(child.context.channel, mode))
        assert (answer.result, answer.word(28)) == (0, status)
    bind = struct.pack("=III", 1, child.context.client, child.context.channel).ljust(104, b"\0")
    answer = child.control(child.context.subdevice, 0x20801211, bind)
    assert answer.word(28) == NOT_PERMITTED
    assert commands(gpu) == [SCHEDULE, 0x20801210]


def test_a_control_call_with_flags_or_another_client_is_none(child: DriverChild, gpu: Gpu) -> None:
    answer = child.control(child.context.subdevice, NAME, bytes(132), flags=4)
    assert answer.word(28) == NOT_PERMITTED
    answer = child.control(child.context.subdevice, NAME, bytes(132), client=child.context.client + 1)
    assert answer.word(28) == NO_CLIENT
    assert commands(gpu) == [SCHEDULE]


def test_lists_that_parameters_point_to_are_copied(child: DriverChild) -> None:
    """The driver receives addresses of the relay's copies. The child's own addresses stay unchanged."""
    at = 64
    parameters = struct.pack("=IxxxxQ", 2, at + 32).ljust(32, b"\0") + struct.pack("=4I", 7, 0, 8, 0)
    header = struct.pack("=4IQ2I", child.context.client, child.context.subdevice, 0x20801201, 0, at, 32, 0xFFFFFFFF)
    data = header.ljust(at, b"\0") + parameters
    answer = child.ioctl(number(CONTROL, 32), data, pointers=(16, at + 8))
    assert (answer.result, answer.word(28)) == (0, OK)
    # The distance of both pointers is unchanged.
    first, second = (struct.unpack_from("=Q", answer.data, where)[0] for where in (16, at + 8))
    assert second - first == 32
    # A list whose length is huge, and a list at an invalid address.
    endless = header.ljust(at, b"\0") + struct.pack("=IxxxxQ", 0xFFFFFFFF, at + 32).ljust(32, b"\0")
    assert child.ioctl(number(CONTROL, 32), endless, pointers=(16, at + 8)).result == -errno.E2BIG
    nowhere = header.ljust(at, b"\0") + struct.pack("=IxxxxQ", 2, 8).ljust(32, b"\0")
    assert child.ioctl(number(CONTROL, 32), nowhere, pointers=(16,)).result == -errno.EFAULT


def test_the_driver_s_version_has_parameters_of_the_driver_s_size(child: DriverChild) -> None:
    """Parameters without lengths are not copied; only their size is checked."""
    assert child.control(child.context.client, 0x0101, bytes(48)).word(28) == 0x3A
    assert child.control(child.context.client, 0x0101, bytes(40)).word(28) != 0x3A


def test_an_envelope_hides_nothing(child: DriverChild, gpu: Gpu) -> None:
    control = struct.pack("=4IQ2I", child.context.client, child.context.group, SET_TIMESLICE, 0, 96, 8, 0xFFFFFFFF)
    data = struct.pack("=IIQ", CONTROL, 32, 32).ljust(32, b"\0") + control.ljust(64, b"\0") + struct.pack("=Q", 1)
    answer = child.ioctl(number(XFER, 16), data, pointers=(8, 48))
    assert (answer.result, answer.word(32 + 28)) == (0, NOT_PERMITTED)
    # Calls that are allowed without an envelope only because their number cannot change any more.
    assert child.ioctl(number(XFER, 16), struct.pack("=IIQ", 0x4E, 56, 32), pointers=(8,)).result == -errno.EPERM
    assert child.ioctl(number(XFER, 16), struct.pack("=IIQ", XFER, 16, 32), pointers=(8,)).result == -errno.EPERM
    assert commands(gpu) == [SCHEDULE]


@pytest.mark.parametrize("letter", ["K", "v", "\0", "G"])
def test_the_driver_looks_at_no_letter_so_only_one_is_let_through(child: DriverChild, letter: str) -> None:
    assert child.ioctl(number(CONTROL, 32, letter=letter), bytes(32)).result == -errno.ENOTTY


@pytest.mark.parametrize("escape", [0x28, 0x35, 0x41, 0x54, 0x57, 0x58, 0x5C, 0x5D, 209, 213, 217, 219, 255])
def test_calls_that_nobody_needs_are_refused(child: DriverChild, escape: int) -> None:
    assert child.ioctl(number(escape, 64), bytes(64)).result == -errno.EPERM


@pytest.mark.parametrize(
    "request_number",
    [number(0x4E, 56), number(0x27, 56), number(0x4A, 184), number(201, 4), 0x30000001, 26, 37, 75],
    ids=hex,
)
def test_calls_whose_number_says_all_go_on_in_the_child(child: DriverChild, request_number: int) -> None:
    """The kernel answers these calls. It does not support any of the driver's calls on a socket."""
    assert child.ioctl(request_number, bytes(256)).result == -errno.ENOTTY


# Calls about managed memory: number, bytes, and offsets of file, client, the client's object and status.
MANAGED = [(25, 32, 16, 20, 24, 28), (27, 56, 16, 20, 24, 48), (33, 9264, 9248, 9252, 9256, 9260)]


@pytest.mark.parametrize("call", MANAGED, ids=lambda call: str(call[0]))
def test_calls_about_managed_memory_that_name_a_client_are_made_by_who_made_it(
    child: DriverChild, gpu: Gpu, call: tuple[int, ...]
) -> None:
    """The driver shares a client's objects only with the process that made it, which is the relay and not the child."""
    request, size, file_at, client_at, object_at, status_at = call
    context = child.context

    def asked(client: int) -> bytes:
        data = bytearray(random_bytes.randbytes(size))
        struct.pack_into("=i", data, file_at, 7)
        struct.pack_into("=I", data, client_at, client)
        struct.pack_into("=I", data, object_at, context.channel)
        struct.pack_into("=I", data, status_at, 0xFFFFFFFF)
        return bytes(data)

    random_bytes = Random(request)
    data = asked(context.client)
    answer = child.ioctl(request, data)
    assert (answer.result, answer.word(status_at)) == (0, OK)
    # All other bytes are those of the child, including its own descriptor.
    assert answer.data[:size] == data[:status_at] + struct.pack("=I", OK) + data[status_at + 4 :]
    refused = child.ioctl(request, asked(context.client + 1))
    assert (refused.result, refused.word(status_at)) == (0, NO_CLIENT)
    assert child.ioctl(request, data, file=90).result == -errno.EBADF
    (made,) = [entry for entry in gpu.fake.log() if entry["call"] == "uvm"]
    assert (made["cmd"], made["status"]) == (request, OK)
    # The driver received the relay's own descriptor of that file.
    assert made["file"] != 7


def test_a_call_about_managed_memory_without_memory_is_an_error(child: DriverChild) -> None:
    envelope = struct.pack("=IIQ", 25, 32, 32)
    assert child.ioctl(number(XFER, 16), envelope, pointers=(8,)).result == -errno.EPERM
    assert child.ioctl_nowhere(25).result == -errno.EFAULT


@pytest.mark.parametrize("size", [0, 16, 31, 33, 48, 4096])
def test_a_control_call_of_another_size_is_refused(child: DriverChild, size: int) -> None:
    assert child.ioctl(number(CONTROL, size), bytes(64)).result == -errno.EPERM


def test_a_call_without_a_file_or_memory_is_an_error(child: DriverChild) -> None:
    assert child.ioctl(number(CONTROL, 32), bytes(32), file=90).result == -errno.EBADF
    answer = child.ioctl(number(XFER, 16), struct.pack("=IIQ", CONTROL, 32, 4096))
    assert answer.result == -errno.EFAULT
    header = struct.pack("=4IQ2I", child.context.client, child.context.subdevice, NAME, 0, 4096, 132, 0)
    assert child.ioctl(number(CONTROL, 32), header).result == -errno.EFAULT


def test_parameters_without_an_end_are_not_copied(child: DriverChild) -> None:
    header = struct.pack("=4IQ2I", child.context.client, child.context.subdevice, NAME, 0, 64, 1 << 30, 0)
    answer = child.ioctl(number(CONTROL, 32), header, pointers=(16,))
    assert (answer.result, answer.word(28)) == (0, 0x3A)
    header = struct.pack("=4IQQ4I", child.context.client, child.context.device, 0, GROUP, 64, 0, 1 << 30, 0, 0, 0)
    answer = child.ioctl(number(ALLOC, 48), header, pointers=(16,))
    assert (answer.result, answer.word(40)) == (0, 0x3A)


def test_objects_that_the_gate_would_not_know_are_not_made(child: DriverChild, gpu: Gpu) -> None:
    context = child.context
    # A channel outside a group: the driver makes a group for it by itself.
    assert child.alloc(context.device, CHANNEL, bytes(368)).word(40) == NO_PARENT
    assert child.alloc(context.subdevice, CHANNEL, bytes(368)).word(40) == NO_PARENT
    # A class that is in no list, and a group with parameters of another driver branch.
    assert child.alloc(context.device, 0xC96F, bytes(368)).word(40) == NO_CLASS
    assert child.alloc(context.device, 0x5080, bytes(4)).word(40) == NO_CLASS
    assert child.alloc(context.device, GROUP, bytes(28)).word(40) == 0x3A
    # A device that shares another client's memory, and another client's event.
    assert child.alloc(context.client, DEVICE, struct.pack("=II", 0, 0xC1D00099).ljust(56, b"\0")).word(40) == NO_CLIENT
    assert child.alloc(context.client, DEVICE, struct.pack("=3I", 0, 0, 9).ljust(56, b"\0")).word(40) == NO_CLIENT
    assert child.alloc(context.client, 0x79, struct.pack("=I", 0xC1D00099).ljust(24, b"\0")).word(40) == NO_CLIENT
    # Objects of a client that does not belong to the child.
    assert child.alloc(0xC1D00099, DEVICE, bytes(56), client=0xC1D00099).word(40) == NO_CLIENT
    assert child.free(0xC1D00099, client=0xC1D00099).word(12) == NO_CLIENT
    made = [entry["class"] for entry in gpu.fake.log() if entry["call"] == "alloc"]
    assert made == [ROOT_CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL]


def test_an_object_is_made_without_flags(child: DriverChild, gpu: Gpu) -> None:
    context = child.context
    made = len(gpu.fake.log())
    for flags in (1, 0x80000000):
        header = struct.pack("=4IQQ4I", context.client, context.device, 0, SUBDEVICE, 64, 0, 4, flags, 0xFFFFFFFF, 0)
        answer = child.ioctl(number(ALLOC, 48), header.ljust(64, b"\0") + bytes(4), pointers=(16,))
        assert answer.word(40) == 0x3A
    assert not [entry for entry in gpu.fake.log()[made:] if entry["call"] == "alloc"]


def test_no_kernel_runs_before_the_gate_can_make_it_preemptible(child: DriverChild, gpu: Gpu) -> None:
    client = child.alloc(0, ROOT_CLIENT, file=OTHER).word(8)
    device = child.alloc(client, DEVICE, bytes(56), client=client, file=OTHER).word(8)
    parameters = struct.pack("=IIIIB3x", 0, 0, 0, 1, 0)
    group = child.alloc(device, GROUP, parameters, client=client, file=OTHER).word(8)
    channel = child.alloc(group, CHANNEL, bytes(368), client=client, file=OTHER).word(8)
    assert child.alloc(channel, 0xCBC0, bytes(16), client=client, file=OTHER).word(40) == NO_PARENT
    assert child.alloc(device, SUBDEVICE, bytes(4), client=client, file=OTHER).word(40) == OK
    assert child.alloc(channel, 0xCBC0, bytes(16), client=client, file=OTHER).word(40) == OK


def test_kernels_run_in_groups_that_the_gate_stops(child: DriverChild, gpu: Gpu) -> None:
    """A copy engine shares its list of channels with the compute engine, so its channels could possibly run kernels."""
    compute = 0xCBC0
    copies = child.channel(child.group(9))
    assert child.alloc(copies, compute, bytes(16)).word(40) == NO_PARENT
    assert child.alloc(child.context.group, compute, bytes(16)).word(40) == NO_PARENT
    assert child.alloc(child.context.device, compute, bytes(16)).word(40) == NO_PARENT
    assert child.alloc(child.context.channel, compute, bytes(16)).word(40) == OK
    assert [entry["class"] for entry in gpu.fake.log() if entry["call"] == "alloc"].count(compute) == 1


def test_groups_and_channels_have_no_second_handle(child: DriverChild, gpu: Gpu) -> None:
    context = child.context
    other = 0x5C00AAAA
    for source in (context.client, context.device, context.subdevice, context.group, context.channel):
        dup = struct.pack("=7I", context.client, context.device, other, context.client, source, 0, 0xFFFFFFFF)
        assert child.ioctl(number(DUP, 28), dup).word(24) == NOT_PERMITTED
    dup = struct.pack("=7I", context.client, context.device, other, 0xC1D00099, context.group, 0, 0xFFFFFFFF)
    assert child.ioctl(number(DUP, 28), dup).word(24) == NO_CLIENT
    assert not [entry for entry in gpu.fake.log() if entry["call"] == "dup"]


def test_a_second_handle_is_of_the_same_client_and_of_nothing_that_the_gate_must_know(
    child: DriverChild, gpu: Gpu
) -> None:
    """A handle of another client is refused, even if the child owns that client. So is a handle below a channel."""
    context, second = child.context, child.second_context()
    compute = child.alloc(context.channel, 0xCBC0, bytes(16)).word(8)
    copies = child.channel(child.group(9))

    def dup(client: int, parent: int, source_client: int, source: int) -> int:
        asked = struct.pack("=7I", client, parent, 0x5C00AAAA, source_client, source, 0, 0xFFFFFFFF)
        return child.ioctl(number(DUP, 28), asked).word(24)

    assert dup(second.client, second.device, context.client, compute) == NO_CLIENT
    assert dup(context.client, context.device, second.client, second.channel) == NO_CLIENT
    assert dup(context.client, copies, context.client, compute) == NO_PARENT
    assert dup(context.client, context.group, context.client, compute) == NO_PARENT
    assert dup(context.client, context.device, context.client, compute) == OK
    assert len([entry for entry in gpu.fake.log() if entry["call"] == "dup"]) == 1


def test_the_table_has_an_end(child: DriverChild) -> None:
    statuses = [
        child.alloc(child.context.device, GROUP, struct.pack("=IIIIB3x", 0, 0, 0, 9, 0)).word(40) for _ in range(1024)
    ]
    assert statuses.count(OK) == 1024 - 5
    assert set(statuses[1024 - 5 :]) == {NO_ROOM}
    # Freed objects make room for new ones.
    assert child.free(child.context.channel).word(12) == OK
    child.group(9)


def test_a_child_has_eight_clients(child: DriverChild) -> None:
    """Each client costs a call when the gate closes. All other tenants wait for this call."""
    statuses = [child.alloc(0, ROOT_CLIENT, file=OTHER).word(40) for _ in range(8)]
    assert statuses == [OK] * 7 + [NO_ROOM]


def test_a_client_is_not_forgotten_because_a_descriptor_was_closed(child: DriverChild, tenant: Slice) -> None:
    """Another descriptor of the file may keep its channels alive. A child that closes the descriptor is killed."""
    client = child.second_context().client
    assert tenant.freeze().op == DONE
    tenant.thaw()
    child.close(OTHER)
    sequence = tenant.send(FREEZE)
    assert tenant.wait_for_exit(1).reason == "its work on the GPU could not be stopped"
    assert tenant.answer(sequence).op == DONE
    assert f"its channels cannot be closed: no file of client {client:#x}" in tenant.log.read_text()


def test_a_client_whose_file_was_closed_is_named_by_no_other(child: DriverChild, gpu: Gpu) -> None:
    """The stale handle may belong to another tenant by now."""
    context = child.context
    stale = child.alloc(0, ROOT_CLIENT, file=OTHER).word(8)
    child.close(OTHER)
    made = len(gpu.fake.log())
    for at in (4, 8):
        parameters = struct.pack("=I", stale).rjust(at + 4, b"\0").ljust(56, b"\0")
        assert child.alloc(context.client, DEVICE, parameters).word(40) == NO_CLIENT
    assert child.alloc(context.subdevice, 0x79, struct.pack("=I", stale).ljust(24, b"\0")).word(40) == NO_CLIENT
    assert child.alloc(context.device, 0x83DE, struct.pack("=3I", 0, stale, 0)).word(40) == NO_CLIENT
    dup = struct.pack("=7I", context.client, context.device, 0x5C00AAAA, stale, 0x5C00BBBB, 0, 0xFFFFFFFF)
    assert child.ioctl(number(DUP, 28), dup).word(24) == NO_CLIENT
    assert not [entry for entry in gpu.fake.log()[made:] if entry["call"] in ("alloc", "dup")]


def test_freed_objects_take_what_is_below_them_along(child: DriverChild) -> None:
    assert child.free(child.context.device).word(12) == OK
    answer = child.control(child.context.group, 0xA06C0106, bytes(4))
    assert answer.word(28) == 0x57
    # Freed handles may be used again.
    again = child.alloc(child.context.client, DEVICE, bytes(56), handle=child.context.device)
    assert again.word(40) == OK
    group = child.group()
    assert child.control(group, SCHEDULE, bytes((1, 0, 0))).word(28) == OK


@pytest.mark.parametrize("version", ["590.10", "570.124.04", "58.1", "5800.1", "580"])
def test_a_driver_that_is_not_known_is_refused_with_the_reason(
    tmp_path: Path, driver_child: Path, version: str
) -> None:
    with run_gpu(version) as gpu, run_driver_slice(tmp_path, gpu, driver_child) as slice_:
        child, _ = slice_.try_start()
        exited = slice_.wait_for_exit(child.number)
        assert exited.reason == f"no context on driver {version}: No such device"
        assert "event=call.refused what=driver number=0x0 driver=unknown" in slice_.log.read_text()
        assert gpu.fake.log() == []


def test_a_driver_that_was_not_asked_for_its_version_is_not_known(child: DriverChild, gpu: Gpu) -> None:
    """The same holds for a driver that has reported another version since."""
    wrong = struct.pack("=II64s", 0, 0, b"580.999")
    answer = child.ioctl(number(CHECK_VERSION, 72), wrong)
    assert answer.result == -errno.EINVAL
    assert answer.data[8:15] == b"580.142"
    assert child.control(child.context.subdevice, NAME, bytes(132)).word(28) == NO_SUCH
    assert child.ioctl(25, struct.pack("=20xI", child.context.client).ljust(32, b"\0")).word(28) == NO_SUCH
    assert commands(gpu) == [SCHEDULE]


def test_another_file_is_another_file(child: DriverChild) -> None:
    """The driver identifies clients by the file of their creation. The relay uses the file that the child names."""
    header = struct.pack("=4IQ2I", child.context.client, child.context.subdevice, NAME, 0, 64, 132, 0)
    answer = child.ioctl(number(CONTROL, 32), header.ljust(64 + 132, b"\0"), pointers=(16,), file=OTHER)
    assert (answer.result, answer.word(28)) == (0, NO_CLIENT)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_s_children_are_relayed_too(gpu: Gpu, driver_child: Path) -> None:
    """The user owns the child's user namespace and therefore may inspect the child."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, 23456, 23456)
        user = ("setpriv", "--reuid=23456", "--regid=23456", "--clear-groups")
        own = Path(shutil.copy(driver_child, folder))
        with run_driver_slice(Path(folder), gpu, own, user=user) as slice_:
            child = DriverChild(slice_.start().window)
            answer = child.control(child.context.subdevice, NAME, bytes(132))
            assert (answer.result, answer.word(28)) == (0, OK)
            answer = child.control(child.context.group, SET_TIMESLICE, bytes(8))
            assert (answer.result, answer.word(28)) == (0, NOT_PERMITTED)
            assert slice_.freeze().op == DONE
            assert slice_.thaw().op == DONE


def test_a_child_without_namespaces_is_relayed_too(tmp_path: Path, gpu: Gpu, driver_child: Path) -> None:
    with run_driver_slice(tmp_path, gpu, driver_child, "--sandbox", "none") as slice_:
        child = DriverChild(slice_.start().window)
        assert child.control(child.context.subdevice, NAME, bytes(132)).word(28) == OK
        assert child.control(child.context.group, SET_TIMESLICE, bytes(8)).word(28) == NOT_PERMITTED
        assert slice_.freeze().op == DONE
        assert slice_.thaw().op == DONE


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an instruction of this processor")
@pytest.mark.parametrize("sandbox", ["best", "none"])
@pytest.mark.parametrize("architecture", [I386, X32], ids=["i386", "x32"])
def test_a_call_of_another_architecture_ends_the_child(
    tmp_path: Path, gpu: Gpu, driver_child: Path, sandbox: str, architecture: int
) -> None:
    """Such a call would bypass the relay. If the sandbox has no filter, the relay's own filter ends the child."""
    with run_driver_slice(tmp_path, gpu, driver_child, "--sandbox", sandbox) as slice_:
        child = slice_.start()
        DriverChild(child.window).begin_foreign_ioctl(architecture, number(CONTROL, 32))
        assert slice_.wait_for_exit(child.number).status == signal.SIGSYS


def test_whatever_bytes_a_child_sends_its_relay_lives(child: DriverChild, gpu: Gpu) -> None:
    """Nothing reaches the driver that would be refused as a plain call."""
    random = Random(20)
    words = [
        *(child.context.client, child.context.device, child.context.subdevice, child.context.group),
        *(0, 1, 64, 8, 0xFFFFFFFF, 0x41, DEVICE, SUBDEVICE, GROUP, CHANNEL, 0x79, 0x83DE),
        *(SCHEDULE, SET_TIMESLICE, DISABLE, NAME, 0x20801201, 0x101, 0x80170D, 0x20801210, 0x20801211),
        *(CONTROL, ALLOC, DUP, 0x29),
    ]
    sizes = {CONTROL: 32, ALLOC: 48, DUP: 28, 0x29: 16, XFER: 16, CHECK_VERSION: 72}
    for _ in range(3000):
        escape = random.choice(list(sizes))
        data = b"".join(
            struct.pack("=I", random.choice(words) if random.random() < 0.8 else random.getrandbits(32))
            for _ in range(64)
        )
        pointers = tuple(random.sample((8, 16, 24, 72, 80, 88), random.randrange(3)))
        # Offsets that become pointers stay within the child's memory.
        for at in pointers:
            data = data[:at] + struct.pack("=Q", random.randrange(0, 512, 8)) + data[at + 8 :]
        if escape == CHECK_VERSION:
            data = struct.pack("=II64s", 0, 0, b"580.142") + data[72:]
        child.ioctl(number(escape, sizes[escape]), data, pointers=pointers)
    answer = child.control(child.context.subdevice, NAME, bytes(132))
    assert answer.result == 0
    reached = set(commands(gpu))
    assert not reached & {SET_TIMESLICE, DISABLE}
