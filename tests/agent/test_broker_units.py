# SPDX-License-Identifier: Apache-2.0
"""Brokers as systemd units: what the agent asks of systemd, and how it reports a broker that does not run. The test
plays systemd.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from vgpumgr_agent.helper.broker_services import BrokerFailedError, BrokerRefusedError, Units
from vgpumgr_agent.helper.brokers import Brokers
from vgpumgr_agent.helper.executors import ExecutorFailedError
from vgpumgr_agent.refused import Refused

from tests.agent import fakebroker
from tests.agent.fakebroker import GPU, AtOnce, shown
from tests.agent.host import A
from tests.agent.test_process_places import TERMS
from vgpumgr.control.sysfs import HostPaths

UNIT = f"vgpumgr-broker@{GPU}.service"
CHECKED = ("/bin/true",)


class Systemd:
    """Starts and stops the program in the broker's place. `fails`: the unit ends at once; `silent`: systemd does not
    answer.
    """

    def __init__(self, root: Path) -> None:
        fakebroker.brokers(root)  # installs the program
        self.service = AtOnce(root / "lib/broker")
        self.directory = fakebroker.directory(root) / GPU
        self.asked: list[str] = []
        self.fails = self.silent = False

    def __call__(self, arguments: Sequence[str], timeout_s: float) -> str:
        self.asked.append(" ".join(arguments))
        if self.silent:
            raise ExecutorFailedError(f"systemctl {arguments[0]} takes longer than {timeout_s:g} s")
        if arguments[0] == "reset-failed":
            raise ExecutorFailedError(f"Unit {UNIT} not loaded.")
        if arguments[0] == "start" and not self.fails:
            self.service._start(GPU, self.directory)
        if arguments[0] == "stop":
            self.service.stop(GPU, self.directory)
        return "failed" if self.fails else "activating"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    fakebroker.install(tmp_path)
    found = Systemd(tmp_path)
    yield found
    found.service.stop(GPU, found.directory)
    fakebroker.clean(tmp_path, fakebroker.brokers(tmp_path))


def brokers(root: Path, systemd: Systemd, *command: str) -> Brokers:
    service = Units(command or CHECKED, systemctl=systemd)
    return Brokers(fakebroker.directory(root), HostPaths(root).agent_settings, service)


def admit(found: Brokers) -> None:
    found.admit(gpu=GPU, claims=[{"uuid": str(A), **TERMS}])


def test_a_broker_is_a_unit_of_its_gpu(tmp_path: Path, systemd: Systemd) -> None:
    found = brokers(tmp_path, systemd)
    admit(found)
    assert systemd.asked[:2] == [f"reset-failed {UNIT}", f"start --no-block {UNIT}"]
    assert set(shown(tmp_path)) == {str(A)}
    [broker] = found.all()
    assert (broker["running"], broker["current"], broker["reason"]) == (True, True, "")
    found.dismiss(uuid=str(A))
    assert systemd.asked[-1] == f"stop {UNIT}"
    assert found.all() == []


@pytest.mark.parametrize(("trouble", "said"), [("fails", f"journalctl --unit={UNIT}"), ("silent", "takes longer")])
def test_a_unit_that_does_not_start_is_told_of_and_leaves_nothing(
    tmp_path: Path, systemd: Systemd, trouble: str, said: str
) -> None:
    setattr(systemd, trouble, True)
    found = brokers(tmp_path, systemd)
    with pytest.raises(Refused) as caught:
        admit(found)
    assert caught.value.code == "broker.failed"
    assert said in caught.value.reason
    systemd.silent = False
    assert found.all() == [] or not found.all()[0]["running"]


def test_what_a_configuration_lacks_is_known_before_systemd_is_asked(tmp_path: Path, systemd: Systemd) -> None:
    found = brokers(tmp_path, systemd, "/bin/sh", "-c", "echo 'vgpumgr: settings.invalid: no such group' >&2; exit 2")
    with pytest.raises(Refused) as caught:
        admit(found)
    assert (caught.value.code, caught.value.reason.endswith("settings.invalid: no such group")) == (
        "broker.refused",
        True,
    )
    assert not any(each.startswith("start") for each in systemd.asked)


def test_a_command_that_is_not_there_is_told_of(tmp_path: Path, systemd: Systemd) -> None:
    with pytest.raises(BrokerFailedError) as caught:
        Units(("/nowhere/vgpumgr",), systemctl=systemd).carry_out(GPU, tmp_path, running=True)
    assert not isinstance(caught.value, BrokerRefusedError)
