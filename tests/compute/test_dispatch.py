# SPDX-License-Identifier: Apache-2.0
"""Commands of the OpenCL backend: order, events, leases, errors, memory and results, on real PoCL."""

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.dispatch_rig import (
    ABSENT,
    FAILED_WAIT,
    INVALID_ARG_VALUE,
    INVALID_COMMAND_QUEUE,
    INVALID_EVENT,
    INVALID_EVENT_WAIT_LIST,
    INVALID_GLOBAL_WORK_SIZE,
    INVALID_KERNEL_ARGS,
    INVALID_MEM_OBJECT,
    INVALID_OPERATION,
    INVALID_VALUE,
    KINDS,
    MEM_OBJECT_ALLOCATION_FAILURE,
    NOTIFY,
    OUT_OF_ORDER,
    PROFILING,
    PROGRESS,
    Driver,
    buffer,
    build,
    image,
    local,
    long_value,
    running,
    sampler,
    value,
)

SOURCE = b"""
kernel void add(global int *a, int b) { a[get_global_id(0)] += b; }
kernel void shout(int n) { printf("number %d\\n", n); }
kernel void wide(global float *out, double16 v, local float *scratch) {
    size_t i = get_local_id(0);
    scratch[i] = (float)i;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = scratch[get_local_size(0) - 1 - i] + (float)v.sf;
}
kernel void spread(read_only image2d_t in, sampler_t s, write_only image2d_t out) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imageui(out, at, read_imageui(in, s, at) + (uint4)(1, 2, 3, 4));
}
kernel void spin(global int *a, int rounds) {
    int x = a[0];
    for (int i = 0; i < rounds; i++) x = x * 1664525 + 1013904223;
    a[0] = x;
}
"""
ADD, SHOUT, WIDE, SPREAD, SPIN = range(1, 6)
COUNT = 256


@pytest.fixture(scope="session")
def binary(dispatch_driver: Path, pocl_cache: Path) -> bytes:
    """The binary of these tests' program, compiled once."""
    with running(dispatch_driver, pocl_cache) as driver:
        assert build(driver, 1, SOURCE).status == 0
        size = driver.do("GET", query=1, handle=1, param=0x1166, value_bytes=1 << 20, value_offset=0).bytes
        return driver.get(0, size)


@pytest.fixture
def driver(dispatch_driver: Path, pocl_cache: Path, binary: bytes) -> Iterator[Driver]:
    """A backend with all kernels, buffer 1 with the numbers from 0, and out-of-order queue 2."""
    with running(dispatch_driver, pocl_cache) as started:
        load(started, binary)
        yield started


def load(driver: Driver, binary: bytes) -> None:
    driver.put(0, binary)
    driver.do(
        "CREATE_PROGRAM_WITH_BINARY",
        program=1,
        context=1,
        devices=[0],
        lengths=[len(binary)],
        binaries_offset=0,
        binaries_bytes=len(binary),
    )
    driver.do("BUILD_PROGRAM", program=1)
    for handle, name in enumerate((b"add", b"shout", b"wide", b"spread", b"spin"), 1):
        driver.do("CREATE_KERNEL", kernel=handle, program=1, name=name)
    numbers(driver, 1)
    driver.do("CREATE_QUEUE", queue=2, context=1, properties=OUT_OF_ORDER)


def numbers(driver: Driver, memory: int) -> None:
    """Make a buffer of COUNT integers from 0."""
    data = struct.pack(f"={COUNT}i", *range(COUNT))
    driver.do("CREATE_BUFFER", memory=memory, context=1, flags=1, bytes=len(data), contents=data, storage_offset=ABSENT)


def add(number: int, memory: int = 1, **more: object) -> dict[str, object]:
    """Fields of a launch of add()."""
    arguments = [buffer(memory), value(struct.pack("=i", number))]
    return {"kernel": ADD, "dimensions": 1, "global": [COUNT, 0, 0], "arguments": arguments, "queue": 1, **more}


def contents(driver: Driver, memory: int = 1, queue: int = 1) -> list[int]:
    """Return the contents of a buffer of integers."""
    size = 4 * COUNT
    assert driver.run("READ_BUFFER", queue=queue, memory=memory, target_offset=0, target_bytes=size) == 0
    return list(struct.unpack(f"={COUNT}i", driver.get(0, size)))


def test_launches_run_in_order_and_their_arguments_are_those_sent_with_them(driver: Driver) -> None:
    numbers(driver, 2)
    for i in range(300):
        driver.send("LAUNCH", **add(i % 3, 1 + i % 2))
    assert driver.run("FINISH", queue=1) == 0
    # Even launches go to buffer 1 and odd ones to buffer 2.
    assert contents(driver, 1) == [n + sum(i % 3 for i in range(0, 300, 2)) for n in range(COUNT)]
    assert contents(driver, 2) == [n + sum(i % 3 for i in range(1, 300, 2)) for n in range(COUNT)]
    state = driver.state()
    assert (state.queued, state.under_way, state.failed) == (0, 0, 0)
    assert state.submitted == state.finished >= 303


def test_long_values_and_local_memory_are_passed(driver: Driver) -> None:
    driver.do("CREATE_BUFFER", memory=2, context=1, flags=1, bytes=64, storage_offset=ABSENT, contents_offset=ABSENT)
    for last in (5.0, 7.0, 7.0):
        data = bytes(8) + struct.pack("=16d", *[0.0] * 15, last)
        launch = {
            "kernel": WIDE,
            "dimensions": 1,
            "has": 2,
            "global": [16, 0, 0],
            "local": [8, 0, 0],
            "arguments": [buffer(2), long_value(8, 128), local(32)],
            "data": data,
        }
        assert driver.run("LAUNCH", queue=1, **launch) == 0
        assert driver.run("READ_BUFFER", queue=1, memory=2, target_offset=0, target_bytes=64) == 0
        expected = [last + n for n in (7, 6, 5, 4, 3, 2, 1, 0)] * 2
        assert list(struct.unpack("=16f", driver.get(0, 64))) == expected


@pytest.mark.parametrize("local", [{}, {"has": 2, "local": [1, 1, 0]}])
def test_a_launch_has_fewer_groups_than_pocl_can_count(driver: Driver, local: dict[str, object]) -> None:
    launch = add(1) | {"dimensions": 2, "global": [1 << 16, 1 << 16, 0]} | local
    assert driver.run("LAUNCH", **launch) == INVALID_GLOBAL_WORK_SIZE
    assert contents(driver) == list(range(COUNT))


def test_an_offset_moves_a_launch(driver: Driver) -> None:
    launch = add(100) | {"has": 1, "offset": [COUNT - 4, 0, 0], "global": [4, 0, 0]}
    assert driver.run("LAUNCH", **launch) == 0
    assert contents(driver)[-5:] == [COUNT - 5, *(n + 100 for n in range(COUNT - 4, COUNT))]


def test_nothing_is_given_to_the_library_without_a_lease_and_queries_are_answered(driver: Driver) -> None:
    before = driver.state().submitted
    driver.lease(False)
    done = driver.start("LAUNCH", **add(1, event=7))
    assert driver.ask("GET", query=3, handle=ADD, param=0x1191, value_bytes=4).status == 0
    state = driver.state()
    assert (state.queued, state.under_way, state.submitted) == (1, 0, before)
    assert state.kernel_id != 0
    driver.lease(True)
    assert driver.completion(done).status == 0


def test_a_piece_that_does_not_fit_the_lease_waits(driver: Driver) -> None:
    driver.lease(True, True, 0)
    done = driver.start("LAUNCH", **add(1))
    assert driver.state().queued == 1
    driver.lease(True, True)
    assert driver.completion(done).status == 0


def test_completions_come_in_the_order_of_the_commands(driver: Driver) -> None:
    for properties, queue in ((0, 3), (PROFILING, 4)):
        driver.do("CREATE_QUEUE", queue=queue, context=1, properties=properties)
        for _ in range(20):
            driver.lease(False)
            calls = [driver.start("LAUNCH", **add(1, queue=queue)) for _ in range(5)]
            driver.send("LAUNCH", **add(1, queue=queue))
            calls.append(driver.start("FINISH", queue=queue))
            driver.lease(True)
            assert driver.completion(calls[-1]).status == 0
            # All earlier completions have already arrived.
            assert [kept.call for kept in driver.kept] == calls[:-1]
            assert all((kept.status, bool(kept.ended_ns)) == (0, bool(properties)) for kept in driver.kept)
            driver.kept.clear()
    assert contents(driver)[0] == 2 * 20 * 6


def test_durations_are_learnt_for_each_kernel_and_size(driver: Driver) -> None:
    rounds = 20_000_000
    spin = {"kernel": SPIN, "dimensions": 1, "global": [1, 0, 0], "queue": 1}
    spin["arguments"] = [buffer(1), value(struct.pack("=i", rounds))]
    for _ in range(8):
        assert driver.run("LAUNCH", **spin) == 0
        assert driver.run("LAUNCH", **add(1)) == 0
    driver.lease(False)
    short = driver.start("LAUNCH", **add(1))
    known_short = driver.state()
    driver.lease(True)
    driver.completion(short)
    driver.lease(False)
    long = driver.start("LAUNCH", **spin)
    known_long = driver.state()
    driver.lease(True)
    driver.completion(long)
    assert known_short.kernel_id != known_long.kernel_id
    # One multiplication takes at least a tenth of a nanosecond on any processor.
    assert known_long.hint_ns > rounds // 10
    assert known_long.hint_ns > known_short.hint_ns


def test_a_marker_that_fails_is_tried_again(driver: Driver) -> None:
    assert driver.run("FINISH", queue=1) == 0
    before = driver.state().finished
    driver.fail_markers(3)
    driver.send("COPY_BUFFER", queue=1, source=1, target=1, target_offset=64, bytes=4)
    # Every frame makes the backend look again. So send none until the backend must have looked by itself.
    time.sleep(1)
    after = driver.state()
    assert (after.finished - before, after.under_way) == (1, 0)


def test_a_user_event_holds_its_queue_alone(driver: Driver) -> None:
    driver.do("CREATE_QUEUE", queue=3, context=1)
    driver.do("CREATE_USER_EVENT", event=1, context=1)
    numbers(driver, 2)
    held = driver.start("LAUNCH", **add(1, waits=[1], event=2))
    behind = driver.start("LAUNCH", **add(1))
    # Waits for a command of the held queue, but only through an event.
    other = driver.start("LAUNCH", **add(1, 2, queue=3, waits=[2]))
    assert driver.run("LAUNCH", **add(1, 2, queue=2)) == 0
    assert driver.state().queued == 0
    driver.do("SET_USER_EVENT_STATUS", event=1, status=0)
    for call in (held, behind, other):
        assert driver.completion(call).status == 0
    assert contents(driver) == [n + 2 for n in range(COUNT)]
    assert driver.ask("SET_USER_EVENT_STATUS", event=1, status=0).status == INVALID_OPERATION
    assert driver.ask("SET_USER_EVENT_STATUS", event=2, status=0).status == INVALID_EVENT


def test_a_failed_event_fails_what_waits_for_it(driver: Driver) -> None:
    driver.do("CREATE_USER_EVENT", event=1, context=1)
    first = driver.start("LAUNCH", **add(1, waits=[1], event=2, queue=2))
    second = driver.start("LAUNCH", **add(1, waits=[2], event=3))
    driver.do("SET_USER_EVENT_STATUS", event=1, status=-7)
    assert driver.completion(first).status == FAILED_WAIT
    assert driver.completion(second).status == FAILED_WAIT
    assert contents(driver) == list(range(COUNT))


def test_out_of_order_barriers_order_what_is_behind_them(driver: Driver) -> None:
    driver.do("CREATE_USER_EVENT", event=1, context=1)
    held = driver.start("LAUNCH", **add(1, queue=2, waits=[1]))
    assert driver.run("LAUNCH", **add(1, queue=2)) == 0
    before = driver.state().submitted
    marker = driver.start("MARKER", queue=2)
    barrier = driver.start("BARRIER", queue=2)
    behind = driver.start("LAUNCH", **add(1, queue=2))
    state = driver.state()
    assert (state.queued, state.submitted) == (0, before)
    driver.do("SET_USER_EVENT_STATUS", event=1, status=0)
    for call in (held, marker, barrier, behind):
        assert driver.completion(call).status == 0
    assert driver.run("FINISH", queue=2) == 0
    assert contents(driver) == [n + 3 for n in range(COUNT)]


def test_a_barrier_with_a_wait_list_waits_for_that_alone(driver: Driver) -> None:
    driver.do("CREATE_USER_EVENT", event=1, context=1)
    driver.do("CREATE_USER_EVENT", event=2, context=1)
    held = driver.start("LAUNCH", **add(1, queue=2, waits=[1]))
    barrier = driver.start("BARRIER", queue=2, waits=[2])
    behind = driver.start("LAUNCH", **add(1, queue=2))
    assert driver.state().queued == 0
    driver.do("SET_USER_EVENT_STATUS", event=2, status=0)
    for call in (barrier, behind):
        assert driver.completion(call).status == 0
    driver.do("SET_USER_EVENT_STATUS", event=1, status=0)
    assert driver.completion(held).status == 0


def test_an_error_nobody_was_told_stays_with_its_queue_until_a_finish(driver: Driver) -> None:
    driver.send("LAUNCH", **add(1, 99))
    driver.send("LAUNCH", **add(1))
    assert driver.run("FINISH", queue=2) == 0
    assert driver.run("FINISH", queue=1) == INVALID_MEM_OBJECT
    assert driver.run("FINISH", queue=1) == 0
    # The same if the finish is sent together with a launch, or directly after a marker.
    for last in ("LAUNCH", "MARKER"):
        driver.lease(False)
        driver.send("LAUNCH", **add(1, 99))
        driver.send(last, **(add(1) if last == "LAUNCH" else {"queue": 1}))
        finish = driver.start("FINISH", queue=1)
        driver.lease(True)
        assert driver.completion(finish).status == INVALID_MEM_OBJECT
        assert driver.run("FINISH", queue=1) == 0
    # This error is reported by the status of the command's event.
    driver.send("LAUNCH", **add(1, 99, event=1))
    assert driver.run("FINISH", queue=1) == 0
    assert driver.run("MARKER", queue=1, waits=[1]) == FAILED_WAIT


def test_wrong_arguments_fail_with_the_apis_errors(driver: Driver) -> None:
    number = value(bytes(4))
    assert driver.run("LAUNCH", **add(1) | {"arguments": [buffer(1)]}) == INVALID_KERNEL_ARGS
    assert driver.run("LAUNCH", **add(1) | {"arguments": [number, number]}) == INVALID_ARG_VALUE
    assert driver.run("LAUNCH", **add(1) | {"arguments": [buffer(1), buffer(1)]}) == INVALID_ARG_VALUE
    assert driver.run("LAUNCH", **add(1) | {"waits": [50]}) == INVALID_EVENT_WAIT_LIST
    assert driver.run("LAUNCH", **add(1, queue=9)) == INVALID_COMMAND_QUEUE
    assert driver.run("READ_BUFFER", queue=1, memory=1, offset=4 * COUNT, target_bytes=4) == INVALID_VALUE
    assert driver.run("READ_BUFFER", queue=1, memory=1, offset=2**64 - 2, target_bytes=4) == INVALID_VALUE
    assert driver.run("FILL_BUFFER", queue=1, memory=1, pattern=bytes(3), bytes=12) == INVALID_VALUE
    assert contents(driver) == list(range(COUNT))


def test_a_number_may_be_used_again_while_commands_still_need_the_old_object(driver: Driver) -> None:
    numbers(driver, 2)
    driver.lease(False)
    driver.send("COPY_BUFFER", queue=1, source=2, target=1, bytes=4 * COUNT)
    driver.send("LAUNCH", **add(10, 2))
    first = driver.start("COPY_BUFFER", queue=1, source=2, target=1, bytes=4, target_offset=4)
    driver.send("RELEASE", kind=KINDS["MEMORY"], handle=2)
    driver.send("RELEASE", kind=KINDS["KERNEL"], handle=ADD)
    driver.do("CREATE_BUFFER", memory=2, context=1, flags=1, bytes=4, storage_offset=ABSENT, contents=bytes(4))
    driver.do("CREATE_KERNEL", kernel=ADD, program=1, name=b"shout")
    driver.lease(True)
    assert driver.completion(first).status == 0
    assert contents(driver)[:3] == [0, 10, 2]


def test_storage_in_the_window_is_the_buffer_and_its_release_is_answered_last(driver: Driver) -> None:
    size = 4 * COUNT
    driver.put(4096, struct.pack(f"={COUNT}i", *range(COUNT)))
    driver.do(
        "CREATE_BUFFER", memory=2, context=1, flags=1, bytes=size,
        storage_offset=4096, storage_bytes=size, contents_offset=ABSENT,
    )  # fmt: skip
    assert driver.run("LAUNCH", **add(5, 2)) == 0
    assert driver.run("MAP_BUFFER", queue=1, memory=2, mapping=1, flags=3, bytes=size) == 0
    assert struct.unpack("=3i", driver.get(4096, 12)) == (5, 6, 7)
    driver.put(4096, bytes(4))
    assert driver.run("UNMAP", queue=1, mapping=1) == 0
    assert driver.run("UNMAP", queue=1, mapping=1) == INVALID_VALUE
    assert driver.run("MAP_BUFFER", queue=1, memory=1, mapping=1, flags=3, bytes=size) == INVALID_OPERATION
    driver.lease(False)
    launched = driver.start("LAUNCH", **add(1, 2))
    driver.send("RELEASE", 1000, kind=KINDS["MEMORY"], handle=2)
    assert driver.state().queued == 1
    assert all(kept.call != 1000 for kept in driver.kept)
    driver.lease(True)
    assert driver.completion(launched).status == 0
    assert driver.reply(1000).status == 0
    assert struct.unpack("=2i", driver.get(4096, 8)) == (1, 7)


def test_a_sub_buffer_is_a_part_of_its_parent(driver: Driver) -> None:
    driver.do("CREATE_SUB_BUFFER", memory=2, parent=1, flags=1, origin=512, bytes=512)
    assert driver.run("LAUNCH", **add(1000, 2) | {"global": [128, 0, 0]}) == 0
    driver.do("RELEASE", kind=KINDS["MEMORY"], handle=2)
    assert contents(driver) == [n if n < 128 else n + 1000 for n in range(COUNT)]
    # A part beyond the parent's end, and a part of a part.
    assert driver.ask("CREATE_SUB_BUFFER", memory=3, parent=1, origin=512, bytes=513).status == INVALID_VALUE
    driver.do("CREATE_SUB_BUFFER", memory=3, parent=1, flags=1, origin=0, bytes=512)
    assert driver.ask("CREATE_SUB_BUFFER", memory=4, parent=3, origin=0, bytes=4).status == INVALID_MEM_OBJECT


def test_rectangles_are_read_and_written_where_they_are(driver: Driver) -> None:
    # 16 x 16 integers, of which 3 x 2 at column 4, row 5.
    shape = {"origin": [16, 5, 0], "region": [12, 2, 1], "row_pitch": 64}
    assert driver.run("READ_BUFFER_RECT", queue=1, memory=1, target_bytes=24, **shape) == 0
    assert struct.unpack("=6i", driver.get(0, 24)) == (84, 85, 86, 100, 101, 102)
    data = struct.pack("=6i", *range(-6, 0))
    assert driver.run("WRITE_BUFFER_RECT", queue=1, memory=1, source=data, **shape) == 0
    assert contents(driver)[83:88] == [83, -6, -5, -4, 87]
    copy = {"source_origin": [16, 5, 0], "target_origin": [0, 0, 0], "region": [12, 2, 1]}
    pitches = {"source_row_pitch": 64, "target_row_pitch": 12}
    numbers(driver, 2)
    assert driver.run("COPY_BUFFER_RECT", queue=1, source=1, target=2, **copy, **pitches) == 0
    assert contents(driver, 2)[:7] == [-6, -5, -4, -3, -2, -1, 6]
    wrong = {**shape, "origin": [16, 15, 0]}
    assert driver.run("READ_BUFFER_RECT", queue=1, memory=1, target_bytes=24, **wrong) == INVALID_VALUE
    assert driver.run("READ_BUFFER_RECT", queue=1, memory=1, target_bytes=20, **shape) == INVALID_VALUE


def test_rectangles_of_sub_buffers_are_those_of_their_parents(driver: Driver) -> None:
    driver.do("CREATE_SUB_BUFFER", memory=2, parent=1, flags=1, origin=512, bytes=512)
    # 8 x 16 integers from number 128 on. Those at column 4, row 5 (3 x 2) become the first 6.
    shape = {"origin": [16, 5, 0], "region": [12, 2, 1], "row_pitch": 64}
    assert driver.run("READ_BUFFER_RECT", queue=1, memory=2, target_bytes=24, **shape) == 0
    assert struct.unpack("=6i", driver.get(0, 24)) == (212, 213, 214, 228, 229, 230)
    copy = {"source_origin": [16, 5, 0], "region": [12, 2, 1], "source_row_pitch": 64, "target_row_pitch": 12}
    numbers(driver, 3)
    assert driver.run("COPY_BUFFER_RECT", queue=1, source=2, target=3, target_origin=[0, 0, 0], **copy) == 0
    assert contents(driver, 3)[:7] == [212, 213, 214, 228, 229, 230, 6]
    copy["target_row_pitch"] = 64
    assert driver.run("COPY_BUFFER_RECT", queue=1, source=2, target=2, target_origin=[0, 0, 0], **copy) == 0
    assert contents(driver)[127:132] == [127, 212, 213, 214, 131]


def test_images_and_samplers_work(driver: Driver) -> None:
    formats = driver.do("GET_IMAGE_FORMATS", context=1, image_type=0x10F1, flags=1)
    assert struct.pack("=II", 0x10B5, 0x10DA) in [formats.formats[i : i + 8] for i in range(0, len(formats.formats), 8)]
    pixels = bytes(range(64))
    shape = {"context": 1, "order": 0x10B5, "type": 0x10DA, "image_type": 0x10F1, "width": 4, "height": 4}
    driver.do("CREATE_IMAGE", memory=10, flags=4, contents=pixels, **shape)
    driver.do("CREATE_IMAGE", memory=11, flags=1, contents_offset=ABSENT, **shape)
    driver.do("CREATE_SAMPLER", sampler=1, context=1, normalized=0, addressing=0x1130, filter=0x1140)
    launch = {"kernel": SPREAD, "dimensions": 2, "global": [4, 4, 0]}
    assert driver.run("LAUNCH", queue=1, arguments=[image(10), sampler(1), image(11)], **launch) == 0
    assert driver.run("READ_IMAGE", queue=1, memory=11, region=[4, 4, 1], target_bytes=64) == 0
    assert driver.get(0, 64) == bytes(n + 1 + n % 4 for n in pixels)
    assert driver.run("WRITE_IMAGE", queue=1, memory=11, origin=[1, 1, 0], region=[1, 1, 1], source=b"abcd") == 0
    copied = {"source": 11, "target": 1, "origin": [1, 1, 0], "region": [1, 1, 1]}
    assert driver.run("COPY_IMAGE_TO_BUFFER", queue=1, **copied) == 0
    assert contents(driver)[0] == struct.unpack("=i", b"abcd")[0]
    assert driver.run("COPY_BUFFER_TO_IMAGE", queue=1, source=1, target=10, region=[2, 1, 1]) == 0
    assert driver.run("COPY_IMAGE", queue=1, source=10, target=11, region=[2, 1, 1], target_origin=[2, 3, 0]) == 0
    driver.do("CREATE_SUB_BUFFER", memory=12, parent=1, flags=1, origin=512, bytes=512)
    assert driver.run("COPY_IMAGE_TO_BUFFER", queue=1, **copied | {"target": 12, "offset": 4}) == 0
    assert contents(driver)[129] == struct.unpack("=i", b"abcd")[0]
    assert driver.run("COPY_BUFFER_TO_IMAGE", queue=1, source=12, offset=4, target=11, region=[1, 1, 1]) == 0
    assert driver.run("READ_IMAGE", queue=1, memory=11, region=[1, 1, 1], target_bytes=4) == 0
    assert driver.get(0, 4) == b"abcd"
    color = {"color": [1, 2, 3, 4], "region": [1, 1, 1]}
    assert driver.run("FILL_IMAGE", queue=1, memory=11, **color) == 0
    assert driver.run("READ_IMAGE", queue=1, memory=11, region=[4, 4, 1], target_bytes=64) == 0
    read = driver.get(0, 64)
    assert (read[:4], read[20:24], read[56:60]) == (bytes([1, 2, 3, 4]), b"abcd", b"abcd")
    assert driver.run("READ_IMAGE", queue=1, memory=11, region=[4, 4, 1], target_bytes=60) == INVALID_VALUE
    # A buffer is not accepted as an image, nor an image as a buffer.
    assert driver.run("READ_IMAGE", queue=1, memory=1, region=[4, 4, 1], target_bytes=64) == INVALID_MEM_OBJECT
    assert driver.run("LAUNCH", **add(1, 11)) == INVALID_MEM_OBJECT


def test_accelerator_memory_is_counted_against_the_limit(dispatch_driver: Path, pocl_cache: Path) -> None:
    with running(dispatch_driver, pocl_cache, memory=16 << 20) as driver:
        plain = {"context": 1, "flags": 1, "storage_offset": ABSENT, "contents_offset": ABSENT}
        driver.do("CREATE_BUFFER", memory=1, bytes=8 << 20, **plain)
        refused = driver.ask("CREATE_BUFFER", memory=2, bytes=8 << 20, **plain)
        assert refused.status == MEM_OBJECT_ALLOCATION_FAILURE
        driver.do("RELEASE", kind=KINDS["MEMORY"], handle=1)
        driver.do("CREATE_BUFFER", memory=2, bytes=8 << 20, **plain)
        size = driver.do("GET", query=9, device=0, param=0x101F, value_bytes=8)
        assert struct.unpack("=Q", size.value) == (16 << 20,)
        # If the request wants no answer, the handle stands for an object that fails each use.
        driver.send("CREATE_BUFFER", memory=3, bytes=8 << 20, **plain)
        assert driver.run("READ_BUFFER", queue=1, memory=3, target_bytes=4) == MEM_OBJECT_ALLOCATION_FAILURE
        driver.do("RELEASE", kind=KINDS["MEMORY"], handle=3)
        for kind, handle in (("MEMORY", 2), ("QUEUE", 1), ("CONTEXT", 1)):
            driver.do("RELEASE", kind=KINDS[kind], handle=handle)
        assert driver.state().reserved == 0


def test_an_image_is_counted_with_the_pitches_of_its_contents(dispatch_driver: Path, pocl_cache: Path) -> None:
    with running(dispatch_driver, pocl_cache, memory=16 << 20) as driver:
        before = driver.state().reserved
        shape = {"context": 1, "order": 0x10B5, "type": 0x10DA, "image_type": 0x10F1, "width": 1, "height": 4}
        contents = {"flags": 4, "row_pitch": 1 << 20, "contents_offset": 0, "contents_bytes": 4 << 20}
        driver.do("CREATE_IMAGE", memory=1, **shape, **contents)
        # PoCL allocates 4 MiB for these 16 bytes.
        assert driver.state().reserved - before == 4 << 20
        size = driver.do("GET", query=7, handle=1, param=0x1102, value_bytes=8)
        assert struct.unpack("=Q", size.value) == (4 << 20,)
        for handle in range(2, 16):
            last = driver.ask("CREATE_IMAGE", memory=handle, **shape, **contents).status
            if last:
                break
        assert last == MEM_OBJECT_ALLOCATION_FAILURE
        # Without contents, the pitch is ignored.
        driver.do("RELEASE", kind=KINDS["MEMORY"], handle=1)
        driver.do("CREATE_IMAGE", memory=20, flags=1, row_pitch=1 << 20, contents_offset=ABSENT, **shape)


def test_memory_that_commands_still_keep_is_waited_for(dispatch_driver: Path, pocl_cache: Path) -> None:
    with running(dispatch_driver, pocl_cache, memory=16 << 20) as driver:
        plain = {"context": 1, "flags": 1, "storage_offset": ABSENT, "contents_offset": ABSENT}
        driver.do("CREATE_USER_EVENT", event=1, context=1)
        driver.do("CREATE_BUFFER", memory=1, bytes=8 << 20, **plain)
        fill = {"memory": 1, "pattern": bytes(4), "bytes": 8 << 20, "queue": 1}
        driver.lease(False)
        done = driver.start("FILL_BUFFER", **fill)
        driver.send("RELEASE", kind=KINDS["MEMORY"], handle=1)
        driver.send("CREATE_BUFFER", 1000, memory=1, bytes=8 << 20, **plain)
        assert driver.state().full == 1
        driver.lease(True)
        assert driver.completion(done).status == 0
        assert driver.reply(1000).status == 0
        # The backend does not wait for a command that cannot run.
        driver.start("FILL_BUFFER", waits=[1], **fill)
        driver.send("RELEASE", kind=KINDS["MEMORY"], handle=1)
        refused = driver.ask("CREATE_BUFFER", memory=1, bytes=8 << 20, **plain)
        assert refused.status == MEM_OBJECT_ALLOCATION_FAILURE


def test_times_of_a_profile_come_in_order_and_progress_is_told(driver: Driver) -> None:
    driver.do("CREATE_QUEUE", queue=3, context=1, properties=PROFILING)
    call = driver.start("LAUNCH", NOTIFY | PROGRESS, **add(1, queue=3, event=1))
    statuses = [driver.completion(call) for _ in range(3)]
    assert [got.status for got in statuses] == [2, 1, 0]
    last = statuses[-1]
    assert 0 < last.queued_ns <= last.submitted_ns <= last.started_ns <= last.ended_ns
    assert last.event == 1
    plain = driver.completion(driver.start("LAUNCH", **add(1)))
    assert (plain.queued_ns, plain.ended_ns) == (0, 0)


def test_what_kernels_print_comes_before_their_completion(driver: Driver) -> None:
    launch = {"kernel": SHOUT, "dimensions": 1, "global": [1, 0, 0], "queue": 1}
    for i in range(5):
        driver.send("LAUNCH", arguments=[value(struct.pack("=i", i))], **launch)
    assert driver.run("LAUNCH", arguments=[value(struct.pack("=i", 5))], **launch) == 0
    assert driver.printed == b"".join(b"number %d\n" % i for i in range(6))


def test_everything_is_released_at_the_end_whatever_is_queued(driver: Driver) -> None:
    driver.do("CREATE_USER_EVENT", event=1, context=1)
    driver.send("LAUNCH", **add(1, queue=2))
    for number in range(10):
        driver.send("LAUNCH", **add(1, waits=[1], event=2 + number, queue=1 + number % 2))
    driver.send("RELEASE", kind=KINDS["QUEUE"], handle=2)
    assert driver.close() == 0
