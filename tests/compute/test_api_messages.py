# SPDX-License-Identifier: Apache-2.0
"""The description of OpenCL is complete and consistent, and the generated code refuses malformed messages."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from compute.api import generate
from compute.api.layout import all_layouts
from compute.api.opencl import OPENCL
from tests.compute.icd_rig import BUILT, ROOT, compile_c, make

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module", autouse=True)
def _generated() -> None:
    make(BUILT / "generated" / "stamp")


def test_the_description_has_the_loaders_table_in_its_order() -> None:
    header = Path("/usr/include/CL/cl_icd.h").read_text()
    table = header[header.index("typedef struct _cl_icd_dispatch {") :]
    table = table[: table.index("} cl_icd_dispatch")]
    names = re.findall(r"\b(cl[A-Z]\w+);", table)
    assert [function.name for function in OPENCL.functions] == names


def test_what_functions_use_is_described() -> None:
    requests = {message.name for message in OPENCL.requests}
    kinds = {name for name, _, _ in OPENCL.enumerations[0].values}
    used: set[str] = set()
    for function in OPENCL.functions:
        used.update(function.messages)
        assert {function.creates, function.destroys} <= kinds | {""}
        assert bool(function.error) == (function.how == "refused"), function.name
        assert bool(function.messages) == (function.how == "remote"), function.name
    assert used == requests


def test_numbers_of_messages_are_distinct_and_commands_are_apart() -> None:
    numbers = [message.number for message in (*OPENCL.requests, *OPENCL.replies)]
    assert len(numbers) == len(set(numbers))
    assert all((message.number >= 32) == message.command for message in OPENCL.requests)


def test_each_count_is_a_field_and_each_array_fits_into_a_message() -> None:
    requests, answers, replies = all_layouts(OPENCL)
    for layout in (*requests, *answers, *replies):
        fields = {field.name: field for field in layout.fields}
        for array in layout.arrays:
            assert fields[array.count].role == "count", (layout.name, array.name)
        assert len(fields) == len(layout.fields)
        assert layout.fixed_bytes % 8 == 0


def test_the_grammar_has_every_message_and_where_its_fields_are() -> None:
    grammar = json.loads(generate.files()["opencl-grammar.json"])
    launch = next(message for message in grammar["requests"] if message["name"] == "LAUNCH")
    assert (launch["op"], launch["command"], launch["fixed_bytes"]) == (32, True, 120)
    offsets = {field["name"]: field["offset"] for field in launch["fields"]}
    assert (offsets["queue"], offsets["kernel"], offsets["global"]) == (16, 28, 72)
    assert len(grammar["requests"]) == len(OPENCL.requests)


def test_the_support_table_says_what_does_not_work_and_why() -> None:
    table = generate.files()["opencl-support.md"]
    assert "| `clSVMAlloc` | 2.0 | no | fails with `CL_INVALID_OPERATION`; no shared virtual memory" in table
    assert "| `clEnqueueNDRangeKernel` | 1.0 | yes | `LAUNCH` |" in table


def test_files_that_do_not_change_are_not_touched(tmp_path: Path) -> None:
    assert generate.main([str(tmp_path)]) == 0
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert generate.main([str(tmp_path)]) == 0
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert generate.main([]) == 2


def test_encoders_and_decoders_agree(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "agree", str(ROOT / "tests/compute/c/decode_agree.c"), *SANITIZED)
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_decoders_read_nothing_outside_of_a_random_message(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "random", str(ROOT / "tests/compute/c/decode_random.c"), *SANITIZED)
    done = subprocess.run([program, "1", "300000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


@pytest.mark.long
def test_decoders_read_nothing_outside_of_many_random_messages(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "random", str(ROOT / "tests/compute/c/decode_random.c"), "-O2", *SANITIZED)
    done = subprocess.run([program, "77", "20000000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
