# SPDX-License-Identifier: Apache-2.0
"""`broker`, `run` and `top --broker` against a control socket that the test answers."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli
from vgpumgr.broker import launch, places
from vgpumgr.broker.places import Programs

CHILD = {"pid": 1, "child": 1, "state": "serving", "submitted": 0, "under_way": 0, "failed": 0}


class Broker:
    """The control socket of a broker. It answers `show` and `set`, one connection after the other, and records the
    requests.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tenants: list[dict[str, Any]] = [shown("blue"), shown("red", processes=1)]
        self.generation = 1
        self.asked: list[dict[str, Any]] = []
        directory.mkdir(parents=True, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(directory / "control"))
        self.listener.listen(8)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # the socket is closed
                return
            with connection, connection.makefile("rwb") as stream:
                request = json.loads(stream.readline())
                self.asked.append(request)
                stream.write(json.dumps(self._answer(request)).encode() + b"\n")

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "set":
            self.generation += 1
            return {"ok": True, "generation": self.generation}
        return {
            "ok": True,
            "generation": self.generation,
            "now_ns": 2 * 10**9,
            "started_ns": 0,
            "tenants": self.tenants,
        }

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def shown(name: str, *, processes: int = 0, leaving: bool = False) -> dict[str, Any]:
    """Return a tenant with the members that these commands read."""
    stats = ("leased_ns", "leases", "waits", "waited_ns", "longest_wait_ns", "gates", "throttled_ns")
    return {
        "name": name,
        "leaving": leaving,
        "confined": False,
        "band": "fair",
        "weight": 100,
        "cap_ns": 0,
        "cap_period_ns": 0,
        "memory_bytes": 2**30,
        "timeslice_ns": 5_000_000,
        "lease": {"state": "none"},
        "supervisor": {"state": "up"},
        "max_processes": 16,
        "processes": [CHILD] * processes,
        "stats": dict.fromkeys(stats, 0),
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path / "b")
    yield running
    running.close()


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that denies access, because tests may run as root, for which file modes do not matter."""

    def connect(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    class Denying(socket.socket):
        pass

    monkeypatch.setattr(Denying, "connect", connect, raising=False)
    monkeypatch.setattr(socket, "socket", Denying)


# ---- permissions


@pytest.mark.parametrize("command", ["broker show", "broker stop", "top --broker --once"])
def test_the_control_socket_is_its_users_alone(cli: Cli, denied: None, command: str) -> None:
    result = cli(*command.split(), "--run-directory", "there")
    assert result.status == 5
    assert result.err == (
        "vgpumgr: permission.denied: there/control: only root and the user who runs the broker may see and change it;"
        " run this as one of them\n"
    )


def test_a_tenants_socket_is_for_whom_its_mode_and_group_let(cli: Cli, denied: None) -> None:
    result = cli("run", "--tenant", "blue", "--run-directory", "there", "--", "true")
    assert result.status == 5
    assert result.err.startswith("vgpumgr: permission.denied: there/blue.sock: you may not use this tenant's")
    assert "socket_mode and socket_group" in result.err


def test_a_runtime_directory_of_another_user_is_passed_over(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "stat", stat)
    cli.env["XDG_RUNTIME_DIR"] = str(tmp_path / "of-another")
    result = cli("broker", "show")
    assert (result.status, result.err.split(": ")[1]) == (7, "broker.unreachable")


# ---- the socket's place


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Programs:
    """The broker's programs, as if they had been built."""
    found = Programs(broker=Path("/p/b"), supervisor=Path("/p/s"), child=Path("/p/c"), library=Path("/p/l.so"))
    monkeypatch.setattr(places, "programs", lambda: found)
    return found


@pytest.fixture
def started(made: Programs, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories of the brokers that the command would have started."""
    directories: list[Path] = []
    monkeypatch.setattr(launch, "become_broker", lambda directory, *_: directories.append(directory))
    return directories


def configuration(tmp_path: Path, text: str = "", tenants: str = "[tenants.blue]\n[tenants.red]\n") -> str:
    file = tmp_path / "broker.toml"
    file.write_text(f'{text}\n[accelerator]\nlibrary = "/bin/sh"\n{tenants}')
    return str(file)


def test_the_option_wins_over_the_file_and_the_file_over_the_variable(
    cli: Cli, tmp_path: Path, started: list[Path]
) -> None:
    in_file = configuration(tmp_path, f'run_directory = "{tmp_path}/file"')
    cli.env["VGPUMGR_RUN_DIRECTORY"] = f"{tmp_path}/variable"
    assert cli("broker", "run", in_file, "--run-directory", f"{tmp_path}/option").status == 0
    assert cli("broker", "run", in_file).status == 0
    assert cli("broker", "run", configuration(tmp_path)).status == 0
    del cli.env["VGPUMGR_RUN_DIRECTORY"]
    assert cli("broker", "run", configuration(tmp_path)).status == 0
    assert [directory.relative_to(tmp_path).as_posix() for directory in started] == [
        "option",
        "file",
        "variable",
        "run/vgpumgr-broker",
    ]


def test_a_run_directory_that_changed_is_not_applied(cli: Cli, tmp_path: Path, broker: Broker, made: Programs) -> None:
    file = configuration(tmp_path, f'run_directory = "{tmp_path}/new"')
    result = cli("broker", "apply", file)
    assert result.status == 7
    assert "`apply` cannot change run_directory: if the broker runs in another directory, give it with" in result.err
    result = cli("broker", "apply", file, "--run-directory", str(broker.directory))
    assert result.status == 0
    assert f"run_directory = '{tmp_path}/new' takes effect when the broker is started again" in result.err


def test_more_processors_than_the_machine_has_are_refused(cli: Cli, tmp_path: Path, made: Programs) -> None:
    file = configuration(tmp_path, tenants="processors = 65536\n[tenants.blue]\n")
    result = cli("broker", "run", "--check", file)
    assert result.status == 2
    assert result.err == (
        f"vgpumgr: field.invalid: accelerator.processors: 65536 is more than the {os.cpu_count()} of this machine;"
        " omit it to use all\n"
    )


# ---- terms that the scheduler cannot keep


def test_a_check_asks_the_scheduler_too(cli: Cli, tmp_path: Path, made: Programs) -> None:
    good = configuration(tmp_path)
    assert cli("broker", "run", "--check", good).err == f"{good}: OK, 2 tenants\n"
    result = cli("broker", "run", "--check", configuration(tmp_path, tenants="[tenants.blue]\ntimeslice_us = 1000\n"))
    assert result.status == 2
    assert result.err.startswith("vgpumgr: field.invalid: tenants.blue.timeslice_us: at least 2000: 20 times engine.")


def test_what_the_scheduler_cannot_keep_is_not_sent(cli: Cli, tmp_path: Path, broker: Broker, made: Programs) -> None:
    file = configuration(tmp_path, tenants="[tenants.blue]\ntimeslice_us = 1000\n")
    result = cli("broker", "apply", file, "--run-directory", str(broker.directory))
    assert (result.status, result.err.split(": ")[1]) == (2, "field.invalid")
    assert broker.asked == []


# ---- the share of each tenant


def test_a_table_of_a_tenant_that_is_not_there_is_refused(cli: Cli, broker: Broker) -> None:
    top = ("top", "--broker", "--once", "--run-directory", str(broker.directory), "--tenant")
    result = cli(*top, "green")
    assert (result.status, result.out) == (3, "")
    assert result.err == (
        f"vgpumgr: object.unknown: the broker in {broker.directory} has no tenant 'green'; it has blue, red\n"
    )
    assert [line.split()[0] for line in cli(*top, "blue").out.splitlines()] == ["TENANT", "blue"]


def test_native_programs_have_columns_of_their_own(cli: Cli, broker: Broker) -> None:
    there = ("--run-directory", str(broker.directory))
    before = [cli(*command, *there).out for command in (("broker", "show"), ("top", "--broker", "--once"))]
    assert not any("ENFORCED BY" in table for table in before)
    counted = {"programs": 2, "working": 1, "open_ns": 10**9, "obtained_ns": 10**9, "gates": 0}
    told = counted | {"memory_used_bytes": 2**29, "open": True}
    process = {"native": True, "pid": 4711, "state": "running"}
    blue = {"native": told, "processes": [process], "supervisor": {"state": "up", "enforced_by": "firmware"}}
    broker.tenants = [shown("blue") | blue, shown("red")]
    tenants, processes = cli("broker", "show", *there).out.split("\n\n")
    header, line, red = tenants.splitlines()
    assert header.split()[-5:] == ["WORKING", "GATE", "USED", "ENFORCED", "BY"]
    assert (line.split()[-4:], red.split()[-4:]) == (["1/2", "open", "512M", "firmware"], ["-"] * 4)
    assert processes.splitlines()[1].split() == ["blue", "4711", "native", "running", "-", "-", "-"]
    header, line, red = cli("top", "--broker", "--once", *there).out.splitlines()
    assert (line.split()[-2:], red.split()[-3:]) == (["512M", "firmware"], ["-"] * 3)
    found = json.loads(cli("top", "--broker", "--once", "-o", "json", *there).out)
    assert [row["native"] and row["native"]["enforced_by"] for row in found] == ["firmware", None]


# ---- messages


def test_apply_names_what_it_removes_and_adds(cli: Cli, tmp_path: Path, broker: Broker, made: Programs) -> None:
    apply = ("broker", "apply", "--run-directory", str(broker.directory))
    broker.tenants += [shown("old"), shown("gone", leaving=True)]
    result = cli(*apply, configuration(tmp_path, tenants="[tenants.blue]\n[tenants.green]\n"))
    assert result.err == (
        "applied; the configuration is generation 2; removed: old, red (1 program ends); added: green\n"
    )
    result = cli(*apply, configuration(tmp_path, tenants="[tenants.blue]\n[tenants.red]\n[tenants.old]\n"))
    assert result.err == "applied; the configuration is generation 3\n"
    result = cli(*apply, configuration(tmp_path), "-o", "json")
    assert json.loads(result.out) == {"generation": 4, "removed": ["old"], "added": []}


def test_a_programs_option_needs_two_dashes(cli: Cli) -> None:
    result = cli("run", "--tenant", "blue", "ls", "-l", "/dev/null")
    assert result.status == 2
    assert result.err == (
        "vgpumgr: argument.invalid: No such option: -l;"
        " put -- before the program, as in `vgpumgr run --tenant blue -- ls -l`\n"
    )


@pytest.mark.parametrize(
    ("program", "status", "code"),
    [
        ("no-such-program", 127, "program.missing: no-such-program: no such file or directory"),
        ("{folder}/no/program", 127, "program.missing: {folder}/no/program: no such file or directory"),
        ("{folder}", 126, "program.unusable: {folder}: permission denied"),
        ("{folder}/file", 126, "program.unusable: {folder}/file: permission denied"),
        ("{folder}/garbage", 126, "program.unusable: {folder}/garbage: exec format error"),
    ],
)
def test_a_program_that_cannot_be_started_ends_as_with_env(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: int, code: str
) -> None:
    monkeypatch.setattr(launch, "check_socket", lambda *_: None)
    (tmp_path / "file").write_text("")
    (tmp_path / "garbage").write_bytes(b"\0garbage")
    (tmp_path / "garbage").chmod(0o755)
    result = cli("run", "--tenant", "blue", "--", program.format(folder=tmp_path))
    assert result.status == status
    assert result.err.startswith(f"vgpumgr: {code.format(folder=tmp_path)}; give a program")


def test_a_native_program_is_started_by_the_launcher(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("run", "--native", "--tenant", "blue", "--run-directory", str(tmp_path), "--", "ls", "-l")
    ran: list[list[str]] = []
    monkeypatch.setattr(launch, "check_socket", lambda *_: None)
    monkeypatch.setattr(os, "execvpe", lambda _file, command, _env: ran.append(command))
    monkeypatch.setattr(places, "CHECKOUT", tmp_path)
    monkeypatch.setattr(places, "INSTALLED", tmp_path / "installed")
    result = cli(*run)
    assert (result.status, result.err.split(": ")[1]) == (1, "broker.missing")
    (tmp_path / "vgpu-native").touch()
    cli(*run)
    assert ran[0] == [f"{tmp_path}/vgpu-native", "--socket", f"{tmp_path}/blue.sock", "--", "ls", "-l"]


CLAIM = "51ce0000-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--native",), "--tenant and --claim"),
        (("--native", "--tenant", "blue", "--claim", CLAIM), "--tenant and --claim"),
        (("--claim", CLAIM), "give --native"),
        (("--native", "--claim", "blue"), "not a UUID"),
        (("--native", "--claim", CLAIM), f"no broker of this host has claim {CLAIM}"),
    ],
)
def test_a_claim_that_no_program_can_be_started_for_is_told_of(cli: Cli, options: tuple[str, ...], said: str) -> None:
    result = cli("run", *options, "--", "ls")
    assert result.status in (2, 7)
    assert said in result.err


def test_a_program_of_a_claim_finds_its_broker(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = tmp_path / "run/vgpumgr-brokers"
    for gpu, claim in (("0000:3a:00.0", CLAIM.replace("5", "6", 1)), ("0000:3b:00.0", CLAIM)):
        (brokers / gpu).mkdir(parents=True)
        (brokers / gpu / f"{claim}.sock").touch()
    ran: list[list[str]] = []
    monkeypatch.setattr(launch, "check_socket", lambda *_: None)
    monkeypatch.setattr(os, "execvpe", lambda _file, command, _env: ran.append(command))
    monkeypatch.setattr(places, "CHECKOUT", tmp_path)
    (tmp_path / "vgpu-native").touch()
    cli("run", "--native", "--claim", CLAIM, "--", "ls")
    assert ran[0] == [f"{tmp_path}/vgpu-native", "--socket", f"{brokers}/0000:3b:00.0/{CLAIM}.sock", "--", "ls"]


def test_a_run_directory_tells_containers_which_gpu_it_is(tmp_path: Path, made: Programs) -> None:
    launch.make_directory(tmp_path / "run", made, {}, nvidia=3)
    assert (tmp_path / "run/nvidia").read_text() == "3\n"
    launch.make_directory(tmp_path / "run", made, {})
    assert not (tmp_path / "run/nvidia").exists()


def test_a_run_directory_has_room_for_the_longest_socket(cli: Cli, tmp_path: Path, started: list[Path]) -> None:
    file = configuration(tmp_path)
    longest = 107 - len("/blue.sock")
    fits = f"{tmp_path}/".ljust(longest, "x")
    assert cli("broker", "run", file, "--run-directory", fits).status == 0
    for command in (("broker", "run", "--check"), ("broker", "run"), ("broker", "apply")):
        result = cli(*command, file, "--run-directory", fits + "x")
        assert result.status == 2
        assert result.err == (
            f"vgpumgr: settings.invalid: run_directory: {fits}x has {longest + 1} characters,"
            f" but the limit is {longest}: the path of a socket has at most 107,"
            " and the longest name here is blue.sock\n"
        )
    assert cli("broker", "show", "--run-directory", "x" * 100).err == (
        f"vgpumgr: broker.unreachable: {'x' * 100}/control is too long for a socket,"
        " so no broker can have this run directory\n"
    )


@pytest.mark.parametrize(("runtime", "todo"), [("", "; set XDG_RUNTIME_DIR or run_directory"), ("{folder}", "")])
def test_without_a_runtime_directory_it_is_said_which_to_set(
    cli: Cli, tmp_path: Path, started: list[Path], monkeypatch: pytest.MonkeyPatch, runtime: str, todo: str
) -> None:
    def mkdir(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    file = configuration(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    cli.env["XDG_RUNTIME_DIR"] = runtime.format(folder=tmp_path)
    result = cli("broker", "run", file)
    assert result.status == 2
    assert result.err.endswith(f"/vgpumgr-broker: permission denied{todo}\n")
