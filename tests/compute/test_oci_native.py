# SPDX-License-Identifier: Apache-2.0
"""Containers of runc with a real launcher, fence and broker, on the fake of NVIDIA's driver."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import BUILT, LIMIT_S, is_alive, wait_for
from tests.compute.native_rig import MIB, PROGRAM, NativeBroker, NativeProgram, native_tenant, run_native_broker
from tests.compute.oci_rig import Host, configuration, make_bundle, skip_without_containers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")


@pytest.fixture
def broker(gpu: Gpu) -> Iterator[NativeBroker]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(
            Path(folder), gpu, native_tenant("blue", max_processes=2), native_tenant("red", socket_mode=0o666)
        ) as broker,
    ):
        (broker.run / "nvidia").write_text("0\n")
        yield broker


@pytest.fixture
def host(broker: NativeBroker, tmp_path: Path) -> Iterator[Host]:
    skip_without_containers(tmp_path)
    found = Host(tmp_path / "host")
    # The wrapper looks for files below the host's own root.
    there = found.root / str(broker.run).lstrip("/")
    there.parent.mkdir(parents=True)
    there.symlink_to(broker.run)
    found.programs.symlink_to(BUILT)
    with found.sockets:
        yield found


class Container:
    """A running container whose first process is a native program."""

    def __init__(self, host: Host, broker: NativeBroker, bundle: Path, process: subprocess.Popen[str]) -> None:
        self.host, self.broker, self.bundle = host, broker, bundle
        self.program = NativeProgram(process)

    @property
    def pid(self) -> int:
        """Process id of the first process, as seen on the host."""
        return int((self.bundle / "pid").read_text())


def command_of(gpu: Gpu) -> list[str]:
    return ["/usr/bin/python3", "-S", f"/programs/{PROGRAM.name}", "/fake/socket", gpu.version]


@contextmanager
def run_container(
    host: Host, broker: NativeBroker, gpu: Gpu, folder: Path, *, uid: int = 0, tenant: str = "blue"
) -> Iterator[Container]:
    config = configuration(*command_of(gpu), tenant=tenant)
    if uid:
        config["process"] |= {"user": {"uid": uid, "gid": uid}, "capabilities": {}}
    for place, source in (("/programs", PROGRAM.parent), ("/fake", gpu.fake.directory)):
        config["mounts"].append({"destination": place, "type": "bind", "source": str(source), "options": ["rbind"]})
    bundle = make_bundle(folder / "bundle", config)
    name = f"vgpumgr-{os.getpid()}-native"
    process = subprocess.Popen(
        host.command("run", "--pid-file", "pid", name),
        cwd=bundle,
        env=host.environment(VGPUMGR_RUN_DIRECTORY=str(broker.run)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    container = Container(host, broker, bundle, process)
    try:
        with container.program:
            yield container
    finally:
        subprocess.run(["runc", "delete", "--force", name], capture_output=True)


@pytest.fixture
def container(host: Host, broker: NativeBroker, gpu: Gpu, tmp_path: Path) -> Iterator[Container]:
    with run_container(host, broker, gpu, tmp_path) as container:
        container.program.wait_until_ready()
        yield container


def execute(container: Container, gpu: Gpu) -> subprocess.Popen[str]:
    """Start a later process of a container, like engines do."""
    path = container.bundle / "process.json"
    path.write_text(json.dumps({"args": command_of(gpu), "cwd": "/", "user": {"uid": 0, "gid": 0}}))
    name = f"vgpumgr-{os.getpid()}-native"
    return subprocess.Popen(
        container.host.command("exec", "--process", str(path), name),
        cwd=container.bundle,
        env=container.host.environment(VGPUMGR_RUN_DIRECTORY=str(container.broker.run)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shown(broker: NativeBroker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.shown("blue")["processes"]
    return found


def test_a_container_computes_on_its_tenants_gpu_and_within_its_memory(
    container: Container, broker: NativeBroker, gpu: Gpu
) -> None:
    program = container.program.work()
    assert program.pid == 1
    assert [each["pid"] for each in shown(broker)] == [container.pid]
    wait_for(lambda: broker.native("blue")["working"] == 1, "the program to be known to work")
    with gpu.observer() as observer:
        observer.pass_time(1_000_000)
        assert observer.progress_ns(0) > 0
    assert program.do(f"allocate {40 * MIB}").startswith("ok ")
    assert program.do(f"allocate {40 * MIB}") == "failed status 0x51"


def test_a_later_process_has_a_fence_of_its_own_and_the_same_memory(
    container: Container, broker: NativeBroker, gpu: Gpu
) -> None:
    assert container.program.do("begin") == "ok None"
    assert container.program.do(f"allocate {40 * MIB}").startswith("ok ")
    with NativeProgram(execute(container, gpu)).wait_until_ready() as later:
        assert later.do("begin") == "ok None"
        assert later.do(f"allocate {40 * MIB}") == "failed status 0x51"
        assert broker.native("blue")["programs"] == 2
    wait_for(lambda: broker.native("blue")["programs"] == 1, "the later program to be forgotten")
    assert container.program.do(f"allocate {MIB}").startswith("ok ")


def test_a_container_without_its_supervisor_ends(container: Container, broker: NativeBroker, gpu: Gpu) -> None:
    container.program.work()
    first = container.pid
    with NativeProgram(execute(container, gpu)).wait_until_ready() as later:
        os.kill(broker.supervisor_pid("blue"), 9)
        assert container.program.wait_for_end() == 128 + 9
        later.wait_for_end()
    assert not is_alive(first)


def test_why_a_process_is_not_taken_is_said_in_its_output(container: Container, gpu: Gpu) -> None:
    with NativeProgram(execute(container, gpu)).wait_until_ready():
        third = execute(container, gpu)
        out, err = third.communicate(timeout=LIMIT_S)
    assert (third.returncode, out) == (125, "")
    assert re.fullmatch(r"vgpumgr: native\.refused: .*max_processes.*\n", err)


def test_a_container_of_a_user_who_may_use_the_tenant(
    host: Host, broker: NativeBroker, gpu: Gpu, tmp_path: Path
) -> None:
    for path in (gpu.fake.directory, gpu.fake.directory / "socket"):
        path.chmod(0o777)
    with run_container(host, broker, gpu, tmp_path, uid=1000, tenant="red") as container:
        program = container.program.wait_until_ready().work()
        assert [each["uid"] for each in broker.shown("red")["processes"]] == [1000]
        assert program.do(f"allocate {80 * MIB}") == "failed status 0x51"
