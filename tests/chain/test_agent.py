# SPDX-License-Identifier: Apache-2.0
"""Helper and agent as a host runs them, root and not, over the real kernel module; only the API is played."""

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

# A lab host whose Python lacks the agent and what it needs has both on PYTHONPATH, or does not run this.
pytest.importorskip("httpx2")
pytest.importorskip("vgpumgr_agent")

from tests.agent.fakeapi import FakeApi, HttpServer, claim, group
from tests.rig.client import Client
from tests.rig.gpu import Gpu, poll
from vgpumgr.wire.fleet import ReportedSlice

RUN = Path("/run/vgpumgr")
USER = "vgpumgr"
VM = UUID("c0ffee00-0000-4000-8000-0000000000aa")
OTHER_VM = UUID("c0ffee00-0000-4000-8000-0000000000bb")
WAIT_S = 180


class Host:
    """Both services. `hook`: what libvirt's hook would hear."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.api = FakeApi()
        self.web = HttpServer(self.api)
        directory.chmod(0o755)
        state = directory / "state"
        state.mkdir()
        os.chown(state, pwd.getpwnam(USER).pw_uid, -1)
        (directory / "token").write_text("one-time")
        self.config = directory / "agent.toml"
        self.config.write_text(
            f'api_url = "{self.web.url}"\nenroll_token_file = "{directory}/token"\n'
            f'state_dir = "{state}"\nreport_interval_s = 0.5\n'
        )
        RUN.mkdir(exist_ok=True)
        os.chown(RUN, pwd.getpwnam(USER).pw_uid, -1)
        self.helper = self.start_helper()
        self.agent = self.start_agent()

    def start_helper(self) -> subprocess.Popen[bytes]:
        return _program("vgpumgr_agent.helper.main", "--records", str(self.directory / "records"))

    def start_agent(self) -> subprocess.Popen[bytes]:
        arguments = ("vgpumgr_agent.main", "--config", str(self.config))
        return _program(*arguments, user=USER, group=USER, extra_groups=[])

    def end(self) -> None:
        for process in (self.agent, self.helper):
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)
        self.web.close()

    def hook(self, operation: str, *devices: UUID, vm: UUID = VM) -> str:
        """The code of a refusal, "" for none."""
        uuids = [str(uuid) for uuid in devices]
        request = {
            "v": 1, "op": operation, "domain": "test", "vm_uuid": str(vm), "devices": uuids, "metadata": uuids,
            "reason": "shutdown",
        }  # fmt: skip
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(WAIT_S)
            connection.connect(str(RUN / "hook.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline())
        return str(answer.get("code", ""))

    def seen(self, uuid: UUID) -> ReportedSlice | None:
        reports = self.api.reports
        slices = reports[-1].slices if reports else []
        return next((each for each in slices if each.id == uuid), None)


def _program(module: str, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    start = f"import sys; sys.argv[0] = '{module}'; from {module} import run; run()"
    return subprocess.Popen([sys.executable, "-c", start, *arguments], **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def working() -> Iterator[Callable[[list[str]], Client]]:
    """Starts clients, and ends them, since a slice that one has open cannot be removed."""
    clients: list[Client] = []

    def start(arguments: list[str]) -> Client:
        clients.append(Client(arguments))
        return clients[-1]

    yield start
    for client in clients:
        client.process.kill()


@pytest.fixture(scope="module")
def host(module: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("host")
    directory.parent.chmod(0o755)
    directory.parent.parent.chmod(0o755)
    if subprocess.run(["id", USER], capture_output=True).returncode:
        subprocess.run(["useradd", "--system", "--user-group", "--no-create-home", USER], check=True)
    host = Host(directory)
    poll(lambda: (RUN / "hook.sock").exists() and bool(host.api.reports), timeout_s=WAIT_S)
    yield host
    host.end()
    module.clear()


def test_a_second_agent_and_a_second_helper_refuse(host: Host) -> None:
    for second in (host.start_agent(), host.start_helper()):
        assert second.wait(WAIT_S) == 1
    assert host.agent.poll() is None
    assert host.helper.poll() is None


def test_nobody_but_the_agents_user_and_root_reaches_the_helper(host: Host) -> None:
    code = "import socket; socket.socket(socket.AF_UNIX).connect('/run/vgpumgr/helper.sock')"
    done = subprocess.run([sys.executable, "-c", code], user="nobody", capture_output=True, text=True)
    assert "PermissionError" in done.stderr


def test_a_host_from_enrolment_to_a_deleted_claim(
    module: Gpu, host: Host, working: Callable[[list[str]], Client]
) -> None:
    gpu = module
    one, other = uuid4(), uuid4()
    api = host.api
    (reported,) = api.reports[-1].gpus
    assert (reported.address, reported.backend) == (gpu.address, "kmod")
    assert {kind.mem_bytes for kind in reported.types} >= {16 << 20, 64 << 20}

    api.set(
        groups=[group("blue", 300), group("green", 200, cap_us=2000, cap_period_us=10_000)],
        slices=[claim(one, vm=VM), claim(other, vm=None, tenant="green", share=200)],
    )
    poll(lambda: set(gpu.tenants()) == {"blue", "green"}, timeout_s=WAIT_S)
    assert (gpu.stats("green").cap_us, gpu.stats("green").cap_period_us) == (2000, 10_000)
    assert gpu.control.gpu(gpu.address).attach == "permit"
    assert gpu.slices() == {}

    assert host.hook("prepare", one, vm=OTHER_VM) == "claim.other_vm"
    assert host.hook("prepare", uuid4()) == "claim.missing"
    assert host.hook("prepare", one, uuid4()) == "claim.missing"
    assert gpu.slices() == {}
    assert host.hook("prepare", one) == ""
    assert host.hook("prepare", other, vm=OTHER_VM) == ""
    assert next(each.vm_uuid for each in api.document.slices if each.id == other) == OTHER_VM

    # Each is opened with its permit, works, and is reported as the kernel has it.
    client = working(["--json", "--seconds", "600", "--slice", f"{one},op=delay,delay-us=500"])
    gpu.wait_queued(str(one))
    poll(lambda: bool((seen := host.seen(one)) and seen.open and seen.run_ns), timeout_s=WAIT_S)
    assert (host.seen(one).applied_permille, host.seen(other).applied_permille) == (300, 200)  # type: ignore[union-attr]
    assert host.hook("prepare", one) == "slice.open"

    # A quota change reaches it, and neither agent nor helper is needed for it to go on.
    halved = [
        each.model_copy(update={"weight": 150, "generation": 5}) if each.id == one else each
        for each in api.document.slices
    ]
    api.set(groups=[group("blue", 150), group("green", 200)], slices=halved)
    poll(lambda: gpu.stats("blue").weight == 150 and gpu.slice_stats(str(one)).weight == 150, timeout_s=WAIT_S)
    poll(lambda: (host.seen(one) or pytest.fail("lost")).applied_permille == 150, timeout_s=WAIT_S)
    assert gpu.stats("green").cap_us == 0
    host.agent.kill()
    host.helper.kill()
    host.agent.wait()
    host.helper.wait()
    before = gpu.slice_stats(str(one)).items
    poll(lambda: gpu.slice_stats(str(one)).items > before)
    host.helper = host.start_helper()
    host.agent = host.start_agent()
    reports = len(api.reports)
    poll(lambda: len(api.reports) > reports, timeout_s=WAIT_S)
    assert gpu.slice_stats(str(one)).open

    # An answer that names nothing removes nothing; a tombstone waits for the VM.
    document = api.document
    api.set(groups=[], slices=[])
    poll(lambda: bool(api.reports[-1].refusals), timeout_s=WAIT_S)
    assert gpu.slice_stats(str(one)).open
    api.set(groups=document.groups, slices=document.slices)
    api.delete(one, groups=[group("green", 200)])
    poll(lambda: "in use" in (host.seen(one) or pytest.fail("lost")).error, timeout_s=WAIT_S)
    client.kill()
    host.hook("release", one)
    poll(lambda: not (host.seen(one) or pytest.fail("lost")).present, timeout_s=WAIT_S)
    poll(lambda: set(gpu.tenants()) == {"green"}, timeout_s=WAIT_S)
    assert set(gpu.slices()) == {str(other)}
    assert host.hook("prepare", one) == "claim.deleted"

    # A start that was given up, told by libvirt's release.
    host.hook("release", other, vm=OTHER_VM)
    poll(lambda: gpu.slices() == {}, timeout_s=WAIT_S)
    assert list((host.directory / "records").iterdir()) == []
