# SPDX-License-Identifier: Apache-2.0
"""Programs of the OpenCL backend: separate compilers, headers, links, binaries, kernels and queries."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.dispatch_rig import (
    ABSENT,
    BUILD_PROGRAM_FAILURE,
    COMPILE_PROGRAM_FAILURE,
    INVALID_BINARY,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_KERNEL_NAME,
    INVALID_OPERATION,
    INVALID_PROGRAM,
    INVALID_PROGRAM_EXECUTABLE,
    INVALID_VALUE,
    KINDS,
    Driver,
    buffer,
    build,
    padded,
    running,
    value,
)

EXECUTABLE, COMPILED, LIBRARY = 4, 1, 2
BUILDS = struct.Struct("=IiII")
QUERY_PROGRAM, QUERY_BUILD, QUERY_KERNEL, QUERY_ARGUMENT, QUERY_WORK_GROUP = 1, 2, 3, 4, 5
SET = b"kernel void set(global int *a) { a[0] = VALUE; }"


@pytest.fixture
def driver(dispatch_driver: Path, pocl_cache: Path) -> Iterator[Driver]:
    with running(dispatch_driver, pocl_cache) as started:
        started.do(
            "CREATE_BUFFER", memory=1, context=1, flags=1, bytes=4, storage_offset=ABSENT, contents_offset=ABSENT
        )
        yield started


def header(name: bytes, text: bytes) -> bytes:
    """Return a record of a program's headers."""
    return struct.pack("=II", len(name), len(text)) + padded(name + text)


def result(driver: Driver, kernel: int) -> int:
    """Run the kernel and return its result from the buffer."""
    launch = {"kernel": kernel, "dimensions": 1, "global": [1, 0, 0], "arguments": [buffer(1)]}
    assert driver.run("LAUNCH", queue=1, **launch) == 0
    assert driver.run("READ_BUFFER", queue=1, memory=1, target_bytes=4) == 0
    return int(struct.unpack("=i", driver.get(0, 4))[0])


def get(driver: Driver, query: int, handle: int, param: int, **more: int) -> bytes:
    answer = driver.do("GET", query=query, handle=handle, param=param, value_bytes=32 << 10, **more)
    return bytes(answer.value)


def test_options_and_headers_reach_the_compiler(driver: Driver) -> None:
    source = b'#include "inner/value.h"\n#include <other.h>\n' + SET
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=source)
    built = driver.ask(
        "BUILD_PROGRAM",
        program=1,
        options=b"-DSECOND=4",
        directories=b"\0with blanks\0",
        headers=header(b"inner/value.h", b'#include "near.h"\n')
        + header(b"inner/near.h", b"#define VALUE (FIRST + SECOND)\n")
        + header(b"with blanks/other.h", b"#define FIRST 3\n"),
    )
    assert built.status == 0, built.logs
    assert BUILDS.unpack(built.builds)[:3] == (0, 0, EXECUTABLE)
    driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"set")
    assert result(driver, 1) == 7
    assert get(driver, QUERY_BUILD, 1, 0x1182) == b"-DSECOND=4\0"
    assert get(driver, QUERY_PROGRAM, 1, 0x1164) == source + b"\0"


def test_a_header_does_not_leave_the_headers_root(driver: Driver, tmp_path: Path) -> None:
    outside = tmp_path / "outside.h"
    for name in (b"../" * 12 + str(outside).encode().lstrip(b"/"), str(outside).encode(), b"a/../../b.h"):
        driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=SET)
        built = driver.ask("BUILD_PROGRAM", program=1, options=b"-DVALUE=1", headers=header(name, b"leak"))
        assert built.status == 0
        driver.do("RELEASE", kind=KINDS["PROGRAM"], handle=1)
    assert not outside.exists()


def test_a_failed_build_has_a_log_and_the_program_can_be_built_again(driver: Driver) -> None:
    failed = build(driver, 1, SET)
    assert failed.status == BUILD_PROGRAM_FAILURE
    device, status, _, log_bytes = BUILDS.unpack(failed.builds)
    assert (device, status) == (0, -2)
    assert b"VALUE" in failed.logs[:log_bytes]
    assert b"VALUE" in get(driver, QUERY_BUILD, 1, 0x1183)
    assert driver.ask("CREATE_KERNEL", kernel=1, program=1, name=b"set").status == INVALID_PROGRAM_EXECUTABLE
    driver.do("BUILD_PROGRAM", program=1, options=b"-DVALUE=5")
    driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"set")
    assert result(driver, 1) == 5
    # A program that has kernels cannot be built again.
    assert driver.ask("BUILD_PROGRAM", program=1).status == INVALID_OPERATION
    driver.do("RELEASE", kind=KINDS["KERNEL"], handle=1)
    driver.do("BUILD_PROGRAM", program=1, options=b"-DVALUE=6")


def test_objects_are_compiled_with_headers_and_linked(driver: Driver) -> None:
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=b"#define VALUE 40\n")
    use = b'#include "value.h"\nint more(void);\nkernel void set(global int *a) { a[0] = VALUE + more(); }'
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=2, context=1, source=use)
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=3, context=1, source=b"int more(void) { return 2; }")
    compiled = driver.do("COMPILE_PROGRAM", program=2, header_programs=[1], header_names=b"value.h\0")
    assert BUILDS.unpack(compiled.builds)[2] == COMPILED
    assert driver.ask("COMPILE_PROGRAM", program=2, header_programs=[1], header_names=b"x").status == INVALID_VALUE
    missing = driver.ask("COMPILE_PROGRAM", program=2)
    assert missing.status == COMPILE_PROGRAM_FAILURE
    driver.do("COMPILE_PROGRAM", program=2, header_programs=[1], header_names=b"value.h\0")
    assert driver.ask("LINK_PROGRAM", program=4, context=1, inputs=[2, 3]).status == INVALID_OPERATION
    driver.do("COMPILE_PROGRAM", program=3)
    linked = driver.do("LINK_PROGRAM", program=4, context=1, inputs=[2, 3])
    assert BUILDS.unpack(linked.builds)[1:3] == (0, EXECUTABLE)
    driver.do("CREATE_KERNEL", kernel=1, program=4, name=b"set")
    assert result(driver, 1) == 42
    assert driver.ask("LINK_PROGRAM", program=4, context=1, inputs=[2, 3]).status == INVALID_VALUE


def test_a_binary_makes_the_same_program_in_another_process(
    driver: Driver, dispatch_driver: Path, pocl_cache: Path, tmp_path: Path
) -> None:
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=SET)
    driver.do("BUILD_PROGRAM", program=1, options=b"-DVALUE=11")
    size = struct.unpack("=Q", get(driver, QUERY_PROGRAM, 1, 0x1165))[0]
    answer = driver.do("GET", query=1, handle=1, param=0x1166, value_offset=64, value_bytes=size)
    assert (answer.bytes, answer.value_bytes) == (size, 0)
    binary = driver.get(64, size)
    # A new cache, so only the binary contains the program.
    empty = tmp_path / "cache"
    empty.mkdir()
    with running(dispatch_driver, empty) as other:
        other.put(0, binary + bytes(8))
        shape = {"context": 1, "devices": [0], "binaries_offset": 0}
        made = other.do("CREATE_PROGRAM_WITH_BINARY", program=1, lengths=[size], binaries_bytes=size, **shape)
        assert made.statuses == [0]
        other.do("BUILD_PROGRAM", program=1)
        other.do("CREATE_KERNEL", kernel=1, program=1, name=b"set")
        plain = {"context": 1, "flags": 1, "storage_offset": ABSENT, "contents_offset": ABSENT}
        other.do("CREATE_BUFFER", memory=1, bytes=4, **plain)
        assert result(other, 1) == 11
        wrong = other.ask("CREATE_PROGRAM_WITH_BINARY", program=2, lengths=[size + 9], binaries_bytes=size, **shape)
        assert wrong.status == INVALID_VALUE
        junk = {**shape, "binaries_offset": 1 << 20}
        bad = other.ask("CREATE_PROGRAM_WITH_BINARY", program=2, lengths=[4096], binaries_bytes=4096, **junk)
        assert (bad.status, bad.statuses) == (INVALID_BINARY, [INVALID_BINARY])


def test_the_client_is_told_what_a_kernels_arguments_are(driver: Driver) -> None:
    source = b"""
    typedef struct { int a, b; } pair;
    kernel __attribute__((reqd_work_group_size(4, 2, 1))) void every(global float *g, constant int *c, local char *l,
        int i, float4 f, pair p, read_only image2d_t r, write_only image3d_t w, sampler_t s, ulong u) {
        g[0] = c[0] + l[0] + i + f.x + p.a + u;
    }"""
    assert build(driver, 1, source).status == 0
    kernel = driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"every")
    information = list(struct.iter_unpack("=IIIIQ", kernel.arguments))
    assert [kind for kind, *_ in information] == [2, 2, 5, 1, 1, 1, 3, 3, 4, 1]
    assert [size for _, size, *_ in information] == [0, 0, 0, 4, 16, 0, 0, 0, 0, 8]
    words = kernel.text.split(b"\0")
    assert words[1:5] == [b"float*", b"g", b"int*", b"c"]
    assert words[-3:] == [b"ulong", b"u", b""]
    assert struct.unpack_from("=4Q", kernel.work_groups)[1:] == (4, 2, 1)
    assert get(driver, QUERY_ARGUMENT, 1, 0x119A, index=3) == b"i\0"
    assert get(driver, QUERY_KERNEL, 1, 0x1190) == b"every\0"
    assert get(driver, QUERY_WORK_GROUP, 1, 0x11B1) == struct.pack("=3Q", 4, 2, 1)
    assert driver.ask("CREATE_KERNEL", kernel=2, program=1, name=b"none").status == INVALID_KERNEL_NAME
    assert get(driver, QUERY_PROGRAM, 1, 0x1168) == b"every\0"


def test_a_type_whose_name_begins_like_an_images_is_no_image(driver: Driver) -> None:
    source = b"""
    typedef struct { float x; } image_row;
    typedef struct { int a; } image_size_t;
    kernel void fill(global image_row *rows, image_size_t size, constant image_row *first, image2d_t plain,
        local image_row *scratch, read_write image2d_t both) {
        rows[get_global_id(0)].x = size.a + first[0].x;
    }
    kernel void run(global image_row *rows, image_size_t size) { rows[get_global_id(0)].x = size.a; }"""
    assert build(driver, 1, source, b"-cl-std=CL2.0").status == 0
    kernel = driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"fill")
    assert [kind for kind, *_ in struct.iter_unpack("=IIIIQ", kernel.arguments)] == [2, 1, 2, 3, 5, 3]
    driver.do("CREATE_KERNEL", kernel=2, program=1, name=b"run")
    driver.do("CREATE_BUFFER", memory=2, context=1, flags=1, bytes=16, storage_offset=ABSENT, contents_offset=ABSENT)
    arguments = [buffer(2), value(struct.pack("=i", 7))]
    assert driver.run("LAUNCH", queue=1, kernel=2, dimensions=1, **{"global": [4, 0, 0]}, arguments=arguments) == 0
    assert driver.run("READ_BUFFER", queue=1, memory=2, target_offset=0, target_bytes=16) == 0
    assert struct.unpack("=4f", driver.get(0, 16)) == (7, 7, 7, 7)


def test_builds_do_not_hold_up_other_requests(driver: Driver) -> None:
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=SET)
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=2, context=1, source=SET)
    driver.send("BUILD_PROGRAM", 1001, program=1, options=b"-DVALUE=21")
    driver.send("BUILD_PROGRAM", 1002, program=2, options=b"-DVALUE=22")
    assert get(driver, QUERY_BUILD, 1, 0x1181) == struct.pack("=i", -3)
    assert driver.ask("BUILD_PROGRAM", program=1).status == INVALID_OPERATION
    assert driver.run("FINISH", queue=1) == 0
    assert not [kept for kept in driver.kept if kept.call in (1001, 1002)]
    # The program is released while it is being built.
    driver.do("RELEASE", kind=KINDS["PROGRAM"], handle=2)
    assert driver.reply(1001).status == driver.reply(1002).status == 0
    driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"set")
    assert result(driver, 1) == 21


def test_queries_that_name_handles_are_refused(driver: Driver) -> None:
    assert build(driver, 1, b"kernel void none(void) {}").status == 0
    driver.do("CREATE_KERNEL", kernel=1, program=1, name=b"none")
    refused = [(1, 1, 0x1161), (1, 1, 0x1160), (1, 1, 0x1163), (3, 1, 0x1193), (3, 1, 0x1194)]
    refused += [(7, 1, 0x1106), (7, 1, 0x1103), (7, 1, 0x1107), (9, 0, 0x1031), (9, 0, 0x1042), (77, 1, 0)]
    for query, handle, param in refused:
        answer = driver.ask("GET", query=query, handle=handle, param=param, value_bytes=8)
        assert (answer.status, answer.values.get("value", b"")) == (INVALID_VALUE, b""), (query, param)
    assert driver.ask("GET", query=1, handle=5, param=0x1164, value_bytes=8).status == INVALID_PROGRAM
    cut = driver.do("GET", query=1, handle=1, param=0x1164, value_bytes=4)
    assert (cut.value, cut.bytes) == (b"kern", len(b"kernel void none(void) {}") + 1)


def test_programs_of_nothing_are_refused(driver: Driver) -> None:
    names = driver.ask("CREATE_PROGRAM_WITH_BUILT_IN_KERNELS", program=1, context=1, devices=[0], names=b"pocl.add")
    assert names.status == INVALID_VALUE
    assert driver.ask("CREATE_PROGRAM_WITH_SOURCE", program=1, context=9, source=b"").status == INVALID_CONTEXT
    driver.do("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=SET)
    assert driver.ask("BUILD_PROGRAM", program=1, devices=[7]).status == INVALID_DEVICE
    assert driver.ask("BUILD_PROGRAM", program=1, devices=[0, 0]).status == INVALID_DEVICE
    assert driver.ask("BUILD_PROGRAM", program=1, headers=b"\xff" * 16).status == INVALID_VALUE
    assert driver.ask("CREATE_PROGRAM_WITH_SOURCE", program=1, context=1, source=b"").status == INVALID_VALUE
