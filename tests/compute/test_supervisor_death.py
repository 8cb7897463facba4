# SPDX-License-Identifier: Apache-2.0
"""Whatever process is killed at any time, no process, cgroup or directory is left, and others continue."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    ECHO,
    HANG,
    LENT,
    LOST,
    SPIN,
    Slice,
    is_alive,
    kill,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
    wait_until_gone,
    wait_until_removed,
)
from tests.compute.gates import has_gate


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    return make_hostile_child(tmp_path_factory.mktemp("hostile"))


def janitors_of(slice_: Slice) -> list[int]:
    return [pid for pid in slice_.processes() if Path(f"/proc/{pid}/comm").read_text() == "vgpu-janitor\n"]


def janitor_of(slice_: Slice) -> int:
    # The janitor sets its name some time after its start.
    wait_for(lambda: janitors_of(slice_), "a janitor")
    return janitors_of(slice_)[0]


def nothing(_slice: Slice) -> None:
    pass


def freeze(slice_: Slice) -> None:
    slice_.freeze()


@pytest.mark.parametrize("before", [nothing, freeze], ids=["open", "closed gate"])
@pytest.mark.parametrize("busy", [ECHO, SPIN, HANG], ids=["asleep", "threads that spin", "a main thread that hangs"])
def test_a_killed_supervisor_leaves_nothing(
    program: Path, tmp_path: Path, gate: str, before: Callable[[Slice], None], busy: int
) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        children = [slice_.start(), slice_.start()]
        if busy != ECHO:
            for child in children:
                tell(child.window, busy)
        cgroup = slice_.cgroup()
        before(slice_)
        pids = [slice_.pid_of(child.number) for child in children]
        pids.append(janitor_of(slice_))
        slice_.process.kill()
        slice_.process.wait()
        for pid in pids:
            wait_until_gone(pid)
        if cgroup:
            wait_until_removed(cgroup)


def test_the_arbiter_s_end_is_everybody_s(program: Path, tmp_path: Path, gate: str) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        child = slice_.start()
        tell(child.window, SPIN)
        pid, cgroup = slice_.pid_of(child.number), slice_.cgroup()
        slice_.freeze()
        slice_.control.close()
        assert slice_.process.wait(60) == 0
        assert not is_alive(pid)
        assert child.window.state == LOST
        assert cgroup is None or not cgroup.exists()


def test_a_killed_child_is_gone_when_the_arbiter_hears_of_it(program: Path, tmp_path: Path, gate: str) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        cgroup = slice_.cgroup()
        for freezes in (False, True):
            child = slice_.start()
            tell(child.window, HANG)
            pid = slice_.pid_of(child.number)
            if freezes:
                slice_.freeze()
            slice_.kill(child.number)
            slice_.wait_for_exit(child.number)
            assert not is_alive(pid)
            assert cgroup is None or not (cgroup / "children" / str(child.number)).exists()
            slice_.thaw()


def test_without_a_janitor_the_next_supervisor_cleans_up(program: Path, tmp_path: Path) -> None:
    if not has_gate("cgroup2"):
        pytest.skip("this machine lets nobody use cgroup2")
    with run_slice(tmp_path, "--backend", "hostile", "--gate", "cgroup2", child=program) as slice_:
        slice_.start()
        cgroup = slice_.cgroup()
        assert cgroup
        words = Path(f"/proc/{slice_.pid_of(1)}/cmdline").read_text().split("\0")
        kill(janitor_of(slice_))
        slice_.process.kill()
        slice_.process.wait()
    assert cgroup.exists()
    # Without this directory, nobody knows who owned the cgroup.
    shutil.rmtree(Path(words[words.index("--scratch") + 1]).parent)
    with run_slice(tmp_path, "--gate", "cgroup2") as slice_:
        slice_.start()
        assert not cgroup.exists()


@pytest.mark.parametrize("policy", ["best", "none"])
def test_children_killed_at_any_moment_leave_nothing(tmp_path: Path, gate: str, policy: str) -> None:
    make_product()
    chance = random.Random(0)
    with run_slice(tmp_path, "--gate", gate, "--sandbox", policy) as slice_:
        slice_.set_lease(1, LENT)
        neighbour = slice_.start()
        for _ in range(12):
            child, _ = slice_.try_start()
            pid = slice_.pid_of(child.number)
            # At any point between the child's first instruction and its service.
            for _ in range(chance.randrange(20)):
                child.window.put(ECHO, 1)
            kill(pid)
            slice_.wait_for_exit(child.number)
            assert not is_alive(pid)
        assert neighbour.window.ask(ECHO, 1).value == 0
        supervisor = slice_.process.pid
        assert len(slice_.processes()) == 2
        # The supervisor has closed each child's control socket, pidfds, pipes and windows.
        assert len(list(Path(f"/proc/{supervisor}/fd").iterdir())) < 32
        words = Path(f"/proc/{slice_.pid_of(neighbour.number)}/cmdline").read_text().split("\0")
        scratch = Path(words[words.index("--scratch") + 1])
        assert list(scratch.parent.iterdir()) == [scratch]
    assert not scratch.parent.exists()
