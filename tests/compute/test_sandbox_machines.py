# SPDX-License-Identifier: Apache-2.0
"""Machines that permit less: the sandbox uses what is left and reports what is missing. Children end as completely."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    DONE,
    FORK,
    HOSTILE_COMPILE,
    LOST,
    call,
    is_alive,
    kill,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
    wait_until_gone,
)

USER = 23456
NO_USER_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
MACHINES = {
    "an ordinary user": ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"),
    "root without user namespaces": ("unshare", "--user", "--map-root-user", "sh", "-c", NO_USER_NAMESPACES, "sh"),
    "nobody may make namespaces": (
        *("unshare", "--user", "--map-root-user", "sh", "-c", NO_USER_NAMESPACES, "sh"),
        *("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
    ),
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take so much away")


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return MACHINES[str(request.param)]


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    make_product()
    with tempfile.TemporaryDirectory() as directory:
        # All users may start the child.
        Path(directory).chmod(0o755)
        yield make_hostile_child(Path(directory))


def test_a_child_serves_confined_and_dies_with_its_supervisor(
    program: Path, tmp_path: Path, machine: tuple[str, ...]
) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=program, machine=machine) as slice_:
        child = slice_.start()
        pid = slice_.pid_of(child.number)
        for number in (57, 59, 62, 41, 101):
            assert call(child.window, number, -1, 9) == -errno.EPERM
        assert call(child.window, 2, b"/etc/passwd", os.O_RDONLY) in {-errno.ENOENT, -errno.EACCES}
        scratch = b"/tmp/file"
        if (
            "scratch" in (words := Path(f"/proc/{pid}/cmdline").read_text())
            and call(child.window, 2, scratch, 66, 384) < 0
        ):
            directory = words.split("--scratch\0")[1].split("\0")[0]
            scratch = f"{directory}/file".encode()
            assert call(child.window, 2, scratch, os.O_CREAT | os.O_RDWR, 0o600) >= 0
        slice_.freeze()
        assert slice_.thaw().op == DONE
        assert call(child.window, 39) > 0
        slice_.process.kill()
        slice_.process.wait()
        wait_until_gone(pid)


def test_what_is_missing_is_said_and_can_be_demanded(program: Path, tmp_path: Path, machine: tuple[str, ...]) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=program, machine=machine) as slice_:
        child = slice_.start()
        # When the child has ended, all its output is in the log.
        slice_.kill(child.number)
        slice_.wait_for_exit(child.number)
        missing = [
            line.split("missing=")[1].split()[0] for line in slice_.log.read_text().splitlines() if "missing=" in line
        ]
    assert ("user-namespace" in missing) == ("unshare" in machine)
    with run_slice(tmp_path, "--backend", "hostile", "--sandbox", "all", child=program, machine=machine) as slice_:
        child, message = slice_.try_start()
        assert message.op == DONE
        if missing:
            assert slice_.wait_for_exit(child.number).reason.startswith(f"sandbox: no {missing[0]}")
            assert child.window.state == LOST
        else:
            child.window.wait_for_state(1)


def test_a_compiler_works_and_leaves_nothing(program: Path, tmp_path: Path, machine: tuple[str, ...]) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=program, machine=machine) as slice_:
        child = slice_.start()
        for job in (b"cjob", b"f", b"x"):
            tell(child.window, HOSTILE_COMPILE, text=job)
            assert int.from_bytes(child.window.reply().data[:8], "little") == 0, job
        assert len(slice_.processes()) == 2
        words = Path(f"/proc/{slice_.pid_of(child.number)}/cmdline").read_text().split("\0")
        scratch = Path(words[words.index("--scratch") + 1])
    assert not scratch.parent.exists()


def test_a_compiler_s_processes_end_with_the_supervisor(
    program: Path, tmp_path: Path, machine: tuple[str, ...]
) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", "signal", child=program, machine=machine) as slice_:
        child = slice_.start()
        before = slice_.processes()
        tell(child.window, HOSTILE_COMPILE, text=b"g")
        wait_for(lambda: len(slice_.processes()) == 3, "a compiler")
        compiler = next(pid for pid in slice_.processes() if pid not in before)
        wait_for(lambda: bool(children_of(compiler)), "a process of the compiler")
        pids = [compiler, *children_of(compiler)]
        slice_.process.kill()
        slice_.process.wait()
        for pid in pids:
            wait_until_gone(pid)


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_processes_of_a_child_without_a_sandbox_end_with_it(
    program: Path, tmp_path: Path, machine: tuple[str, ...]
) -> None:
    options = ("--backend", "hostile", "--sandbox", "none", "--gate", "signal")
    with run_slice(tmp_path, *options, child=program, machine=machine) as slice_:
        child = slice_.start()
        tell(child.window, FORK)
        descendant = int.from_bytes(child.window.reply().data[:8], "little")
        assert is_alive(descendant)
        # The parent dies first, so the descendant is an orphan.
        kill(slice_.pid_of(child.number))
        slice_.wait_for_exit(child.number)
        assert not is_alive(descendant)
