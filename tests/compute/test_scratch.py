# SPDX-License-Identifier: Apache-2.0
"""Where a child without a mount namespace writes: others cannot prepare it, and nothing outside is removed."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import FAILED, Slice, make_product, run_slice, wait_until_removed

TMP = Path("/tmp")


@pytest.fixture(scope="module", autouse=True)
def product() -> None:
    make_product()


@pytest.fixture
def slice_(tmp_path: Path) -> Iterator[Slice]:
    with run_slice(tmp_path, "--sandbox", "none") as running:
        running.ready()
        yield running


def scratch_of(slice_: Slice, child: int) -> Path:
    words = Path(f"/proc/{slice_.pid_of(child)}/cmdline").read_text().split("\0")
    return Path(words[words.index("--scratch") + 1])


def fill(scratch: Path, outside: Path) -> None:
    """Make files, links that lead outside, and directories nested deeper than a process's number of descriptors."""
    (scratch / "file").write_text("x")
    (scratch / "link").symlink_to(outside)
    (scratch / "a" / "b").mkdir(parents=True)
    (scratch / "a" / "b" / "link").symlink_to(outside / "kept")
    subprocess.run(
        ["python3", "-c", "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"],
        cwd=scratch / "a",
        check=True,
    )


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "kept").write_text("x")
    return directory


def test_a_stranger_s_directory_becomes_nobody_s_scratch(slice_: Slice) -> None:
    prepared = TMP / f"vgpu-{slice_.process.pid}-child-1"
    prepared.mkdir(0o777)
    try:
        child = slice_.start()
        scratch = scratch_of(slice_, child.number)
        assert scratch != prepared
        above = scratch.parent.lstat()
        assert stat.S_ISDIR(above.st_mode)
        assert above.st_uid == os.geteuid()
        # Children of another user can pass through the directory, but cannot create or list entries.
        assert stat.S_IMODE(above.st_mode) == 0o711
        assert stat.S_IMODE(scratch.lstat().st_mode) == 0o700
        assert str(slice_.process.pid) not in scratch.parent.name
    finally:
        prepared.rmdir()


def test_a_supervisor_removes_what_it_made_and_nothing_else(slice_: Slice, outside: Path) -> None:
    foreign = TMP / f"vgpu-{slice_.process.pid}-x"
    foreign.mkdir()
    (foreign / "file").write_text("x")
    try:
        child = slice_.start()
        scratch = scratch_of(slice_, child.number)
        fill(scratch, outside)
        slice_.kill(child.number)
        slice_.wait_for_exit(child.number)
        assert not list(scratch.parent.iterdir())
        janitors = slice_.processes()
        slice_.control.close()
        assert slice_.process.wait(60) == 0
        assert not scratch.parent.exists()
        for pid in janitors:
            wait_until_removed(Path(f"/proc/{pid}"))
        assert (foreign / "file").exists()
    finally:
        (foreign / "file").unlink(missing_ok=True)
        if foreign.exists():
            foreign.rmdir()
    assert (outside / "kept").exists()


def test_a_killed_supervisor_s_janitor_removes_its_scratch(slice_: Slice, outside: Path) -> None:
    child = slice_.start()
    scratch = scratch_of(slice_, child.number)
    fill(scratch, outside)
    slice_.process.kill()
    slice_.process.wait()
    wait_until_removed(scratch.parent)
    assert (outside / "kept").exists()


def test_a_child_without_its_own_scratch_does_not_start(slice_: Slice) -> None:
    one = slice_.start()
    above = scratch_of(slice_, one.number).parent
    (above / "child-2").mkdir(0o777)
    _, answer = slice_.try_start(number=2)
    assert answer.op == FAILED
    assert f"event=scratch {above}/child-2 error={errno.EEXIST}" in slice_.log.read_text()
    slice_.number = 2
    slice_.start()
