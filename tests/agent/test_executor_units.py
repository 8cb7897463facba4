# SPDX-License-Identifier: Apache-2.0
"""Executors as systemd units: what the agent asks of systemd, and how it reads the answers. The test plays systemd."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from vgpumgr_agent.helper import units
from vgpumgr_agent.helper.executors import ExecutorFailedError, Found, Launch, State
from vgpumgr_agent.helper.units import Units, drop_in, slice_of, unit_of

from tests.agent.helper_requests import OTHER, UUID
from vgpumgr.control.executor_settings import ExecutorSettings

LIBRARY = Path("/usr/lib/libpocl.so.2")
RUNS = {"ActiveState": "active", "MainPID": "7", "StatusText": "serving the slice", "Result": "success"}
ENDED = {"ActiveState": "failed", "MainPID": "0", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "1"}


class Systemd:
    """Units by name. `fails`: how a unit that is started from now on ends; `silent`: systemd does not answer."""

    def __init__(self) -> None:
        self.units: dict[str, dict[str, str]] = {}
        self.asked: list[list[str]] = []
        self.fails: dict[str, str] | None = None
        self.silent = False

    def __call__(self, arguments: Sequence[str], timeout_s: float) -> str:
        self.asked.append(list(arguments))
        if self.silent:
            raise ExecutorFailedError(f"systemctl {arguments[0]} takes longer than {timeout_s:g} s")
        verb, *names = arguments
        if verb == "show":
            blocks = [{"Id": name, **self.units.get(name, {"ActiveState": "inactive"})} for name in names[1:]]
            return "\n\n".join("\n".join(f"{key}={value}" for key, value in block.items()) for block in blocks)
        unit = names[-1]
        if verb == "start":
            self.units[unit] = self.fails or (
                RUNS if "--no-block" not in names else {**RUNS, "ActiveState": "activating"}
            )
            if self.fails and "--no-block" not in names:
                raise ExecutorFailedError(f"Job for {unit} failed.")
        elif verb == "reset-failed" and unit not in self.units:
            raise ExecutorFailedError(f"Unit {unit} not loaded.")
        else:
            self.units.pop(unit, None)
        return ""

    def verbs(self) -> list[str]:
        """Return and clear the requests other than those for the state of units."""
        said = [" ".join(each[:-1]) for each in self.asked if each[0] != "show"]
        self.asked.clear()
        return said


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


@pytest.fixture
def executors(tmp_path: Path, systemd: Systemd) -> Units:
    return Units(tmp_path, systemctl=systemd)


def launch(tenant: str = "blue", **changes: int) -> Launch:
    return Launch(uuid=UUID, tenant=tenant, settings=ExecutorSettings(library=LIBRARY, **changes))


def test_what_one_executor_differs_in_is_in_a_drop_in() -> None:
    assert drop_in(launch("blue-team", memory_max_bytes=4096, tasks_max=9, cpu_max_permille=1505)) == (
        "[Service]\n"
        "Slice=vgpumgr-blue\\x2dteam.slice\n"
        "ExecStart=\n"
        f"ExecStart=/usr/lib/vgpumgr/vgpu-executor --slice {UUID} --library {LIBRARY} --compile-cache-bytes 67108864"
        " --gate-limit-ms 1000\n"
        "MemoryMax=4096\n"
        "TasksMax=9\n"
        "CPUQuota=150.5%\n"
    )
    assert "Max=" not in drop_in(launch())
    assert "CPUQuota" not in drop_in(launch())


def test_a_tenant_is_never_inside_another_tenants_slice() -> None:
    assert slice_of("blue-team").count("-") == slice_of("blue").count("-") == 1


def test_one_is_started_found_and_stopped(executors: Units, systemd: Systemd, tmp_path: Path) -> None:
    assert executors.all() == []
    assert executors.start(launch(), wait_s=5) is True
    assert executors.all() == [Found(uuid=UUID, state=State.RUNNING, pid=7)]
    assert (tmp_path / f"{unit_of(UUID)}.d/50-slice.conf").read_text() == drop_in(launch())
    assert systemd.verbs() == ["start"]
    assert executors.start(launch(), wait_s=5) is False
    executors.stop(UUID)
    executors.stop(UUID)
    assert systemd.verbs() == ["stop", "reset-failed"]
    assert (executors.all(), list(tmp_path.iterdir())) == ([], [])


def test_another_tenant_takes_another_process(executors: Units, systemd: Systemd, tmp_path: Path) -> None:
    executors.start(launch(), wait_s=5)
    assert executors.start(launch("green"), wait_s=5) is True
    assert systemd.verbs() == ["start", "stop", "reset-failed", "start"]
    assert "vgpumgr-green.slice" in (tmp_path / f"{unit_of(UUID)}.d/50-slice.conf").read_text()


def test_one_that_does_not_start_says_why_and_leaves_nothing(
    executors: Units, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.fails = {**ENDED, "StatusText": "the module is of another version"}
    with pytest.raises(ExecutorFailedError, match=r"^the module is of another version$"):
        executors.start(launch(), wait_s=5)
    assert (list(tmp_path.iterdir()), systemd.units) == ([], {})


def test_one_that_nobody_waits_for_is_starting(executors: Units, systemd: Systemd) -> None:
    assert executors.start(launch(), wait_s=0) is True
    assert [each.state for each in executors.all()] == [State.STARTING]
    assert systemd.verbs() == ["start --no-block"]
    assert executors.start(launch(), wait_s=5) is True
    assert systemd.verbs() == ["start"]


def test_one_that_failed_is_started_anew(executors: Units, systemd: Systemd) -> None:
    executors.start(launch(), wait_s=0)
    systemd.units[unit_of(UUID)] = ENDED
    assert executors.start(launch(), wait_s=0) is True
    assert systemd.verbs() == ["start --no-block", "stop", "reset-failed", "start --no-block"]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (ENDED, "it ended with status 1"),
        ({**ENDED, "StatusText": "serving the slice"}, "it ended with status 1"),
        ({**ENDED, "StatusText": "serving the slice; memory_used_bytes=1 memory_bytes=2"}, "it ended with status 1"),
        ({**ENDED, "StatusText": "two\twords"}, "two words"),
        ({"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}, "it was killed by SIGKILL"),
        ({"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "99"}, "it was killed by signal 99"),
        ({"ActiveState": "failed", "Result": "timeout"}, "it was not ready in time"),
        ({"ActiveState": "inactive", "ExecMainCode": "0"}, "it ended"),
        ({}, "it ended"),
    ],
)
def test_how_one_ended_is_said(executors: Units, systemd: Systemd, shown: dict[str, str], reason: str) -> None:
    executors.start(launch(), wait_s=5)
    systemd.units[unit_of(UUID)] = shown
    assert executors.all() == [Found(uuid=UUID, state=State.FAILED, reason=reason)]


def test_each_is_told_apart(executors: Units, systemd: Systemd) -> None:
    executors.start(launch(), wait_s=5)
    executors.start(Launch(uuid=OTHER, tenant="blue", settings=launch().settings), wait_s=5)
    systemd.units[unit_of(UUID)] = ENDED
    assert {each.uuid: each.state for each in executors.all()} == {UUID: State.FAILED, OTHER: State.RUNNING}


def test_a_systemd_that_does_not_answer_has_no_executors(executors: Units, systemd: Systemd, tmp_path: Path) -> None:
    executors.start(launch(), wait_s=5)
    systemd.silent = True
    assert [each.reason for each in executors.all()] == ["systemctl show takes longer than 5 s"]
    with pytest.raises(ExecutorFailedError):
        executors.stop(UUID)
    assert list(tmp_path.iterdir())  # the agent tries again


def test_systemctl_says_what_it_said_or_that_it_is_slow_or_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExecutorFailedError, match="No such file"):
        units.systemctl(["show"], 5)
    program = tmp_path / "systemctl"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$2" != stop ] || { echo "it  is"; echo "not"; exit 5; } >&2\n'
        '[ "$2" != wait ] || exec /bin/sleep 60\n'
        'echo "$@"\n'
    )
    program.chmod(0o755)
    assert units.systemctl(["show", "x"], 5) == "--no-ask-password show x\n"
    with pytest.raises(ExecutorFailedError, match=r"^it is not$"):
        units.systemctl(["stop"], 5)
    with pytest.raises(ExecutorFailedError, match="takes longer"):
        units.systemctl(["wait"], 0.2)


def test_the_template_is_what_the_drop_in_completes() -> None:
    text = (Path(__file__).parents[2] / "agent/systemd/vgpumgr-executor@.service").read_text()
    for line in ("Type=notify", "NotifyAccess=main", "Delegate=yes", "Restart=no", "OOMPolicy=continue"):
        assert f"\n{line}\n" in text
    helper = (Path(__file__).parents[2] / "agent/systemd/vgpumgr-helper.service").read_text()
    assert "/run/systemd/system" in helper


@pytest.mark.parametrize(
    ("status", "used_and_most"),
    [
        ("serving the slice", (0, 0)),
        ("serving the slice; memory_used_bytes=5 memory_bytes=4096", (5, 4096)),
        ("memory_used_bytes=5 memory_bytes=4096", (0, 0)),
        ("serving the slice; memory_used_bytes=-5 memory_bytes=4096", (0, 0)),
        (f"serving the slice; memory_used_bytes={'9' * 19} memory_bytes=4096", (0, 0)),
    ],
)
def test_an_executor_says_how_much_memory_its_programs_have(
    tmp_path: Path, systemd: Systemd, status: str, used_and_most: tuple[int, int]
) -> None:
    made = Units(tmp_path, systemctl=systemd)
    made.start(Launch(uuid=UUID, tenant="blue", settings=ExecutorSettings(library=LIBRARY)), wait_s=1)
    systemd.units[unit_of(UUID)] = {**RUNS, "StatusText": status}
    [found] = made.all()
    assert (found.state, found.memory_used_bytes, found.memory_bytes) == (State.RUNNING, *used_and_most)
