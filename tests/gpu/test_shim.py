# SPDX-License-Identifier: Apache-2.0
"""The shim in programs that call the driver in every wrong way. It changes what it should and never ends a program."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.fakerm.build import device_library
from tests.gpu.fakerm.fake import FakeRm
from vgpumgr.gpu.shim import ShimControlError, change_timeslice, library, records

ROOT = Path(__file__).resolve().parents[2]
PERMISSION = 0x1B
PARAM_STRUCT = 0x3A
BAD_POINTER = 0x3D


class Program:
    """Starts the caller under the shim, or without it if `bare`."""

    def __init__(self, fake: FakeRm, folder: Path) -> None:
        self.fake = fake
        self.log = folder / "log"
        self.control = folder / "control"

    def start(self, *words: str, bare: bool = False, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.fake.environment, "PYTHONPATH": str(ROOT)}
        settings = {"LOG": str(self.log), "CONTROL": str(self.control), **variables}
        environment |= {f"VGPUMGR_SHIM_{name}": value for name, value in settings.items()}
        preload = [device_library()] if bare else [library(), device_library()]
        environment["LD_PRELOAD"] = " ".join(map(str, preload))
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "tests.gpu.caller", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, bare: bool = False, **variables: str) -> Any:
        process = self.start(*words, bare=bare, **variables)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, f"ended by {signal.Signals(-process.returncode).name}"
        return json.loads(output.splitlines()[-1])

    def events(self, name: str) -> list[dict[str, Any]]:
        return [entry for entry in records(self.log) if entry["event"] == name]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with FakeRm() as fake:
        yield Program(fake, tmp_path)


def test_only_groups_that_run_kernels_get_the_timeslice_and_keep_it(program: Program) -> None:
    for seen in program.run("timeslices", TIMESLICE_US="6000"):
        runs_kernels = seen["engine"] == 1
        assert seen["made_us"] == (6000 if runs_kernels else 0)
        assert seen["us"] == (6000 if runs_kernels else 0)
        assert (seen["answer"]["result"], seen["answer"]["status"]) == (0, 0)
        # The tenant's own value is still there, and a successful call leaves errno unchanged.
        assert int.from_bytes(bytes.fromhex(seen["answer"]["params"]), "little") == 2048
        assert seen["answer"]["pointer_kept"]
        assert seen["answer"]["errno"] == 77
    assert [(e["asked_us"], e["requested_us"]) for e in program.events("rewritten")] == [(2048, 6000)] * 2


def test_without_a_timeslice_it_only_looks_on(program: Program) -> None:
    assert [seen["us"] for seen in program.run("timeslices")] == [2048, 0] * 2
    assert len(program.events("group")) == 4
    assert program.events("applied") == program.events("rewritten") == []


@pytest.mark.parametrize("text", ["", "abc", "-1", "+5", " 6000", "6000 ", "0", "8355841", "18446744073709551617"])
def test_a_timeslice_that_cannot_be_used_is_reported_and_not_set(program: Program, text: str) -> None:
    assert [seen["us"] for seen in program.run("timeslices", TIMESLICE_US=text)] == [2048, 0] * 2
    assert [entry["name"] for entry in program.events("setting_ignored")] == ["VGPUMGR_SHIM_TIMESLICE_US"]


def test_parameters_of_a_wrong_size_are_the_drivers_to_refuse(program: Program) -> None:
    answer = program.run("sizes", TIMESLICE_US="6000")
    assert answer["statuses"] == [PARAM_STRUCT] * 6
    assert answer["us"] == 6000
    assert program.events("rewritten") == []


@pytest.mark.parametrize("bare", [True, False])
def test_addresses_that_lead_nowhere_give_what_the_driver_gives(program: Program, bare: bool) -> None:
    answer = program.run("pointers", bare=bare, TIMESLICE_US="6000")
    assert answer["errnos"] == [14]
    assert answer["statuses"] == [BAD_POINTER] * 4
    assert answer["read_only"] == [-1, 14]
    assert answer["unchanged"]


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_random_calls_are_answered_as_without_the_shim(program: Program, seed: str) -> None:
    with FakeRm() as other:
        bare = Program(other, program.log.parent).run("random_calls", seed, bare=True)
    shimmed = program.run("random_calls", seed)
    assert shimmed["calls"] == 1500
    assert shimmed["answers"] == bare["answers"]


def test_random_calls_do_not_end_a_program_that_is_changed(program: Program) -> None:
    assert program.run("random_calls", "4", TIMESLICE_US="6000", PREEMPTION="cilp")["calls"] == 1500
    assert program.events("rewritten")


def test_threads_may_call_at_once(program: Program) -> None:
    assert program.run("threads", TIMESLICE_US="6000") == {"wrong": []}


def test_a_timeslice_is_changed_while_a_program_runs(program: Program) -> None:
    with program.start("waits", TIMESLICE_US="6000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == [6000, 6000]
        assert change_timeslice(program.control, process.pid, 9000)["taken"] == 2
        print(file=process.stdin, flush=True)
        # The second group was freed, so the shim neither changes nor counts it.
        assert json.loads(process.stdout.readline()) == [9000]
        changed = change_timeslice(program.control, process.pid, 12000)
        assert (changed["groups"], changed["taken"], changed["status"]) == (1, 1, 0)
        print("\n", file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline()) == [12000]
        assert json.loads(process.stdout.readline()) == []
        # Freeing the device has freed its groups.
        assert change_timeslice(program.control, process.pid, 2000)["groups"] == 0
        process.kill()


def test_a_refusal_of_a_change_is_told(tmp_path: Path) -> None:
    with FakeRm(refuse_timeslice=True) as fake:
        program = Program(fake, tmp_path)
        with program.start("waits") as process:
            assert process.stdout is not None
            process.stdout.readline()
            answer = change_timeslice(program.control, process.pid, 9000)
            assert (answer["taken"], answer["status"]) == (0, PERMISSION)
            process.kill()


GARBAGE = [
    b"x",
    b"timeslice",
    b"timeslice ",
    b"timeslice -1",
    b"timeslice 0",
    b"timeslice 8355841",
    b"timeslice 5\0x",
    b"timeslice 6000 7000",
    bytes(range(256)) * 8,
    b"\xff" * 60000,
]


def test_nonsense_on_the_control_socket_changes_nothing(program: Program) -> None:
    with program.start("waits", TIMESLICE_US="6000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        for packet in GARBAGE:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.settimeout(10)
                channel.connect(f"{program.control}.{process.pid}")
                channel.send(packet)
                assert b"error" in channel.recv(4096)
        # A client that connects and disconnects, and a silent client, delay others only briefly.
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(f"{program.control}.{process.pid}")
        with pytest.raises(ShimControlError, match="1 to 8355840"):
            change_timeslice(program.control, process.pid, 0)
        print(file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline()) == [6000]
        process.kill()


def test_a_child_has_its_own_groups_and_its_own_socket(program: Program) -> None:
    with program.start("forks", TIMESLICE_US="6000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["us"], first["child"]["us"]) == (6000, 6000)
        assert change_timeslice(program.control, first["child"]["pid"], 9000)["groups"] == 1
        assert change_timeslice(program.control, process.pid, 12000)["groups"] == 1
        print(file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline()) == {"us": 12000}
    assert process.returncode == 0


@pytest.mark.parametrize("version", ["999.10", "470.256.02", "", "not a version", "580" + "9" * 60, "5" * 64])
def test_with_a_driver_it_does_not_know_it_stands_aside_and_says_so(tmp_path: Path, version: str) -> None:
    with FakeRm(version=version, cuda_version=version) as fake:
        program = Program(fake, tmp_path)
        seen = program.run("timeslices", TIMESLICE_US="6000", PREEMPTION="refuse-wfi")
        assert [one["us"] for one in seen] == [2048, 0] * 2
        assert [entry["known"] for entry in program.events("driver")] == [False]
        assert {entry["event"] for entry in records(program.log)} == {"driver"}


@pytest.mark.parametrize(("mode", "status"), [("pass", 0), ("refuse-wfi", PERMISSION), ("cilp", 0), ("nonsense", 0)])
def test_kernels_that_cannot_be_stopped_are_refused_or_made_stoppable(program: Program, mode: str, status: int) -> None:
    answers = program.run("preemption", PREEMPTION=mode)
    # Where such requests are refused, parameters of an unknown size are refused as well.
    strange = PERMISSION if mode == "refuse-wfi" else PARAM_STRUCT
    for name, answered in answers.items():
        expected = status if name.startswith("wfi") else 0
        # Only the status is written.
        assert answered == [[expected, True, True]] * 3 + [[strange, True, True]], name
    reached: dict[int, list[int]] = {12: [], 84: [], 92: []}
    for entry in program.fake.log():
        params = bytes.fromhex(entry["params"]) if entry["call"] == "control" else b""
        offset = {(0x20801210, 32): 12, (0x20801211, 104): 84, (0x20801211, 112): 92}.get(
            (entry.get("cmd", 0), len(params))
        )
        if offset and params.startswith(b"\1\0\0\0"):
            reached[offset].append(params[offset])
    for modes in reached.values():
        assert modes == {"refuse-wfi": [2, 2], "cilp": [2, 2, 2, 2]}.get(mode, [0, 0, 2, 2])
    told = "refused" if mode == "refuse-wfi" else "passed"
    assert [e["reason"] for e in program.events(told) if "reason" in e] == ["preemption parameters of 120 bytes"] * 6
    assert bool(program.events("setting_ignored")) == (mode == "nonsense")


def test_more_groups_than_it_keeps_are_passed_on_and_told(program: Program) -> None:
    assert program.run("many_groups", TIMESLICE_US="6000") == {"made": 300}
    assert len(program.events("passed")) == 300 - 256
    assert len(program.events("applied")) == 256


def test_files_of_others_are_left_alone(program: Program) -> None:
    assert program.run("others", TIMESLICE_US="6000") == {
        "fionread": [0, 5],
        "enotty": [True, True, True],
        "closed": 9,
    }


@pytest.mark.parametrize("log", ["/dev/full", "/", "/nowhere/log", ""])
def test_a_log_that_cannot_be_written_disturbs_nobody(program: Program, log: str) -> None:
    assert [seen["us"] for seen in program.run("timeslices", TIMESLICE_US="6000", LOG=log)] == [6000, 0] * 2


def test_a_log_that_may_not_grow_does_not_end_the_program(program: Program) -> None:
    assert program.run("full_log", TIMESLICE_US="6000") == {"us": 6000, "pending": []}


def test_a_socket_goes_with_its_process(program: Program) -> None:
    program.run("timeslices")
    assert not list(program.control.parent.glob("control.*"))


def test_a_number_that_became_another_file_is_not_closed_in_a_child(program: Program) -> None:
    assert program.run("reuses_listener") == {"child_reads": "tenant"}


def test_a_socket_of_another_process_is_not_asked(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
        impostor.bind(f"{tmp_path / 'control'}.1")
        impostor.listen()
        with pytest.raises(ShimControlError, match=f"process {os.getpid()} has its socket"):
            change_timeslice(tmp_path / "control", 1, 9000)


def test_a_socket_that_cannot_be_made_is_told_and_disturbs_nobody(program: Program) -> None:
    for prefix in ("/nowhere/control", "/tmp/" + "x" * 200):
        assert program.run("timeslices", TIMESLICE_US="6000", CONTROL=prefix)[0]["us"] == 6000
    assert len(program.events("control_failed")) == 2
