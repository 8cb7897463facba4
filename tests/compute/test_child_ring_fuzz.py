# SPDX-License-Identifier: Apache-2.0
"""The child's ends of the rings under sanitizers, while another thread changes what they read."""

import subprocess
from pathlib import Path

import pytest

from tests.compute.executor_rig import COMPUTE, ROOT, build

CHILD = COMPUTE / "executor" / "child"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# The child must use the checked copy of the header. This mutation reads the header once more.
CHECKED = "	memcpy(message + 1, requests->data + at + sizeof(*message),"
AGAIN = "	message->bytes = ((const volatile struct vgpu_message *)(requests->data + at))->bytes;\n"


def fuzzer(folder: Path, request_ring: Path) -> Path:
    sources = (ROOT / "tests" / "compute" / "ring_fuzz.c", request_ring, CHILD / "reply_ring.c")
    return build(folder / "ring_fuzz", *sources, flags=SANITIZERS)


def run(program: Path, messages: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, str(messages), "1"], capture_output=True, text=True)


@pytest.mark.parametrize("messages", [200_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_what_changes_in_the_window_changes_nothing_in_the_child(tmp_path: Path, messages: int) -> None:
    ran = run(fuzzer(tmp_path, CHILD / "request_ring.c"), messages)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.long
def test_a_header_that_is_read_twice_is_found(tmp_path: Path) -> None:
    source = (CHILD / "request_ring.c").read_text()
    assert CHECKED in source
    twice = tmp_path / "request_ring.c"
    twice.write_text(source.replace(CHECKED, AGAIN + CHECKED))
    assert run(fuzzer(tmp_path, twice), 10_000_000).returncode != 0
