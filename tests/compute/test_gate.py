# SPDX-License-Identifier: Apache-2.0
"""The gate: after DONE, nothing of a slice runs, whatever its children do. Tested with each kind of gate."""

import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    DONE,
    ECHO,
    EXPIRED,
    FAILED,
    FORK,
    FREEZE,
    HANG,
    LENT,
    ROOT,
    SPIN,
    THAW,
    Child,
    build,
    is_alive,
    kill,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
)

BULK_AT = 4096 + 2 * (1 << 20)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    return make_hostile_child(tmp_path_factory.mktemp("hostile"))


def counts(child: Child) -> tuple[int, ...]:
    """The counters of the child's threads, of its main thread and of a process that it has started."""
    return tuple(child.window.words.wholes[BULK_AT // 8 : BULK_AT // 8 + 3])


def wait_until_it_counts(child: Child, index: int) -> None:
    before = counts(child)[index]
    wait_for(lambda: counts(child)[index] != before, "a count")


def priorities(pid: int) -> set[tuple[str, str]]:
    """Real-time priority and policy of each thread, which are fields 40 and 41 of proc(5)."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {(fields[37], fields[38]) for fields in (stat.rsplit(")", 1)[1].split() for stat in stats)}


@pytest.mark.parametrize(("op", "index"), [(SPIN, 0), (HANG, 1)], ids=["threads that spin", "a main thread that hangs"])
def test_a_child_that_ignores_the_lease_s_end_is_stopped(
    program: Path, tmp_path: Path, gate: str, op: int, index: int
) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        slice_.set_lease(1, LENT)
        children = [slice_.start(), slice_.start()]
        for child in children:
            tell(child.window, op)
            wait_until_it_counts(child, index)
        slice_.set_lease(1, EXPIRED, expires_ns=0)
        for _ in range(10):
            done = slice_.freeze()
            assert done.op == DONE
            before = [counts(child) for child in children]
            # These round trips to the supervisor take as long as a lease of some milliseconds.
            again = [slice_.freeze() for _ in range(50)]
            assert [counts(child) for child in children] == before
            assert all(message.processor_ns == again[0].processor_ns for message in again)
            assert slice_.thaw().op == DONE
            for child in children:
                wait_until_it_counts(child, index)
        assert slice_.freeze().processor_ns > done.processor_ns


def test_opening_and_closing_twice_changes_nothing(tmp_path: Path, gate: str) -> None:
    make_product()
    with run_slice(tmp_path, "--gate", gate) as slice_:
        assert slice_.freeze().op == slice_.freeze().op == slice_.thaw().op == slice_.thaw().op == DONE
        child = slice_.start()
        assert slice_.thaw().op == DONE
        assert child.window.ask(ECHO, 1).value == 0
        slice_.freeze()
        slice_.freeze()
        child.window.put(ECHO, 1)
        slice_.thaw()
        assert child.window.reply().value == 0


def test_a_child_that_starts_behind_a_closed_gate_waits(tmp_path: Path, gate: str) -> None:
    make_product()
    with run_slice(tmp_path, "--gate", gate) as slice_:
        slice_.freeze()
        child, message = slice_.try_start()
        assert message.op == DONE
        assert slice_.freeze().op == DONE
        assert child.window.state == 0
        slice_.thaw()
        child.window.wait_for_state(1)
        assert child.window.ask(ECHO, 1).value == 0


def test_requests_that_overtake_each_other_are_all_answered(tmp_path: Path, gate: str) -> None:
    make_product()
    with run_slice(tmp_path, "--gate", gate) as slice_:
        child = slice_.start()
        sequences = [slice_.send(op) for op in (FREEZE, THAW, FREEZE, FREEZE, THAW)]
        answers = [slice_.receive() for _ in sequences]
        assert sorted(answer.sequence for answer in answers) == sequences
        assert all(answer.op in {DONE, FAILED} for answer in answers)
        assert child.window.ask(ECHO, 1).value == 0


def test_compilers_work_behind_a_closed_gate(program: Path, tmp_path: Path, gate: str) -> None:
    with run_slice(
        tmp_path, "--backend", "hostile", "--gate", gate, "--compiler-limit-ms", "500", child=program
    ) as slice_:
        child = slice_.start()
        tell(child.window, 4, text=b"s")
        wait_for(lambda: len(slice_.processes()) == 3, "a compiler")
        slice_.freeze()
        # The frozen child cannot receive the answer. The compiler is ended nevertheless.
        wait_for(lambda: "timed out" in slice_.log.read_text(), "the compiler's end")
        slice_.thaw()
        child.window.reply()


def test_a_descendant_is_stopped_and_killed_too(program: Path, tmp_path: Path, gate: str) -> None:
    """Without a sandbox, a child can start processes and detach them from itself."""
    options = ("--backend", "hostile", "--gate", gate, "--sandbox", "none")
    with run_slice(tmp_path, *options, child=program) as slice_:
        child = slice_.start()
        tell(child.window, FORK)
        pid = struct.unpack_from("=q", child.window.reply().data)[0]
        wait_until_it_counts(child, 2)
        assert slice_.freeze().op == DONE
        before = counts(child)
        for _ in range(50):
            slice_.freeze()
        assert counts(child) == before
        slice_.thaw()
        wait_until_it_counts(child, 2)
        slice_.kill(child.number)
        slice_.wait_for_exit(child.number)
        assert not is_alive(pid)


def test_closing_times_are_logged(program: Path, tmp_path: Path, gate: str) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        child = slice_.start()
        tell(child.window, SPIN)
        for _ in range(100):
            wait_until_it_counts(child, 0)
            slice_.freeze()
            slice_.thaw()
        log = slice_.log
    line = next(line for line in log.read_text().splitlines() if "event=gate" in line)
    print(line)
    assert f"kind={gate} closings=100 p50_ns=" in line


def test_a_child_goes_on_with_the_priority_that_it_had(program: Path, tmp_path: Path, gate: str) -> None:
    """If the supervisor has the privilege, it raises the priority of the child's threads while they stop."""
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        child = slice_.start()
        tell(child.window, SPIN)
        pid = slice_.pid_of(child.number)
        for _ in range(20):
            wait_until_it_counts(child, 0)
            slice_.freeze()
            # SIGCONT cancels a SIGSTOP, so with signals no thread may get a priority.
            if gate == "signal":
                assert priorities(pid) == {("0", "0")}
            slice_.thaw()
            assert priorities(pid) == {("0", "0")}


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_child_that_dies_behind_a_closed_gate_costs_the_supervisor_nothing(tmp_path: Path, gate: str) -> None:
    """A child that was frozen before its exec has copies of the descriptors that the supervisor closes."""
    make_product()
    with run_slice(tmp_path, "--gate", gate) as slice_:
        cgroup = slice_.cgroup() if gate == "cgroup1" else None
        first = slice_.start()
        slice_.freeze()
        later = [slice_.try_start()[0] for _ in range(3)]
        # Stop the supervisor, so it finds all signs of the child's end at the same time.
        pid = slice_.pid_of(first.number)
        os.kill(slice_.process.pid, signal.SIGSTOP)
        kill(pid)
        if cgroup:
            (cgroup / "compilers" / "cgroup.procs").write_text(str(pid))
        wait_for(lambda: not is_alive(pid), "the child's end")
        os.kill(slice_.process.pid, signal.SIGCONT)
        slice_.wait_for_exit(first.number)
        # This child takes the place of the first one.
        later.append(slice_.try_start()[0])
        before = processor_s(slice_.process.pid)
        time.sleep(1)
        assert processor_s(slice_.process.pid) - before < 0.25
        slice_.thaw()
        for child in later:
            child.window.wait_for_state(1)
            assert child.window.ask(ECHO, 1).value == 0


def test_a_number_that_has_become_a_stranger_s_is_not_signalled(tmp_path: Path) -> None:
    sources = [ROOT / "compute/executor/gate" / f"{name}.c" for name in ("gate", "tree", "cgroup", "latency")]
    program = build(
        tmp_path / "reused-pid",
        ROOT / "tests/compute/reused_pid.c",
        *sources,
        flags=("-Wl,--wrap=pidfd_open",),
    )
    command = ("unshare", "--fork", "--pid", "--mount-proc", str(program))
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "runs\n"), ran.stderr
