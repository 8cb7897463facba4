# SPDX-License-Identifier: Apache-2.0
"""`host doctor` where a GPU is set aside for processes: each thing that its broker needs."""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import GPU
from tests.unit.cli.test_doctor import examine, healthy, write
from vgpumgr.cli.broker_checks import PROGRAMS

ASIDE = "0000:21:00.0"
SETTINGS = f'[gpus."{ASIDE}"]\nworkload = "process"\nexecutor = {{nvidia = 3}}\n'
UNIT = "etc/systemd/system/vgpumgr-broker@.service"
RUN = f"run/vgpumgr-brokers/{ASIDE}"
BROKER = f"broker {ASIDE}"


def tenant(name: str, *, state: str = "up", leaving: bool = False) -> dict[str, Any]:
    return {"name": name, "leaving": leaving, "supervisor": {"state": state}}


def answer(listener: socket.socket, tenants: list[dict[str, Any]]) -> None:
    """Be a broker with these tenants."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.makefile("rb").readline()
            connection.sendall(json.dumps({"ok": True, "tenants": tenants}).encode() + b"\n")


@pytest.fixture
def root() -> Iterator[Path]:
    """A host with a GPU for VMs and one for processes, where all is well and nothing is claimed.

    Its path is short, because that of a socket below it must be.
    """
    with tempfile.TemporaryDirectory() as directory, healthy(Path(directory) / "root") as made:
        write(made / "etc/vgpumgr/agent.toml", SETTINGS)
        for name in PROGRAMS:
            write(made / "usr/lib/vgpumgr" / name, "", 0o755)
        write(made / UNIT, "")
        write(made / "dev/nvidia3", "")
        (made / "run/systemd/system").mkdir(parents=True)
        yield made


@pytest.fixture
def serving(root: Path) -> Iterator[Callable[..., None]]:
    """Has a broker of the GPU answer with the tenants that it is given."""
    listeners = []

    def serve(*tenants: dict[str, Any]) -> None:
        (root / RUN).mkdir(parents=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listeners.append(listener)
        listener.bind(str(root / RUN / "control"))
        listener.listen()
        threading.Thread(target=answer, args=(listener, list(tenants)), daemon=True).start()

    yield serve
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_a_gpu_for_processes_without_a_claim(cli: Cli, root: Path) -> None:
    status, findings = examine(cli, root)
    assert status == 0
    assert findings["broker programs"] == ("ok", "/usr/lib/vgpumgr", "")
    assert findings[f"processes {ASIDE}"] == ("ok", "set aside, /dev/nvidia3", "")
    assert findings[BROKER][0] == "ok"


def test_a_broker_that_serves_all_claims(cli: Cli, root: Path, serving: Callable[..., None]) -> None:
    serving(tenant("a"), tenant("b"), tenant("c", state="down", leaving=True))
    assert examine(cli, root)[1][BROKER] == ("ok", "serves 2 claims", "")


def test_a_broker_with_a_claim_that_is_not_served(cli: Cli, root: Path, serving: Callable[..., None]) -> None:
    serving(tenant("a"), tenant("b", state="down"))
    status, findings = examine(cli, root)
    assert status == 8
    assert findings[BROKER][:2] == ("warn", "1 of 2 claims are not served, b first")


def test_where_no_gpu_is_set_aside_nothing_is_said_of_brokers(cli: Cli, root: Path) -> None:
    write(root / "etc/vgpumgr/agent.toml", "")
    status, findings = examine(cli, root)
    assert status == 0
    assert not [check for check in findings if check.startswith(("broker", "processes"))]


@pytest.mark.parametrize(
    ("check", "do", "found"),
    [
        ("broker programs", lambda root: (root / "usr/lib/vgpumgr/vgpu-native").unlink(), "vgpu-native is missing"),
        ("broker unit", lambda root: (root / UNIT).unlink(), "is not installed"),
        (f"processes {ASIDE}", lambda root: (root / "dev/nvidia3").unlink(), "/dev/nvidia3 is missing"),
        (BROKER, lambda root: (root / RUN).mkdir(parents=True), "the broker does not answer: "),
    ],
)
def test_each_thing_that_is_missing_is_found(
    cli: Cli, root: Path, check: str, do: Callable[[Path], None], found: str
) -> None:
    do(root)
    status, findings = examine(cli, root)
    assert status == 1
    assert findings[check][0] == "fail"
    assert found in findings[check][1]
    assert findings[check][2]


def test_a_gpu_that_is_shared_for_vms_too_is_found(cli: Cli, root: Path) -> None:
    write(root / "etc/vgpumgr/agent.toml", SETTINGS.replace(ASIDE, GPU))
    status, findings = examine(cli, root)
    assert status == 1
    assert findings[f"processes {GPU}"][:2] == ("fail", "set aside for processes, but vgpumgr.ko shares it among VMs")


def test_a_host_whose_gpus_are_all_for_processes_needs_no_module(cli: Cli, root: Path) -> None:
    shutil.rmtree(root / "sys")
    shutil.rmtree(root / "etc/libvirt")
    status, findings = examine(cli, root)
    assert status == 0
    assert findings["vms"][0] == "ok"
    assert not {"module", "mdev", "gpus", "hook", "libvirt"} & set(findings)


def test_an_answer_of_another_release_is_a_finding(cli: Cli, root: Path, serving: Callable[..., None]) -> None:
    serving({"name": "a"})
    status, findings = examine(cli, root)
    assert status == 1
    assert findings[BROKER][:2] == ("fail", "the broker's answer is of another release")
