# SPDX-License-Identifier: Apache-2.0
"""Real containers of runc through `vgpumgr-oci` that try to run a program without the launcher."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.executor_rig import wait_for
from tests.compute.oci_rig import LIMIT_S, Host, configuration, make_bundle, skip_without_containers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers with devices take root")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("oci")
    skip_without_containers(folder)
    found = Host(folder / "host")
    found.make_launcher()
    with found.sockets:
        yield found


@pytest.fixture
def run(host: Host, tmp_path: Path) -> Run:
    """Run a script in a tenant's container and return its output."""

    def run(script: str, change: Callable[[dict[str, Any]], None] = lambda _: None) -> str:
        config = configuration("/bin/sh", "-c", script, tenant="blue")
        change(config)
        bundle = make_bundle(tmp_path / "bundle", config)
        result = host.call("run", f"vgpumgr-{os.getpid()}", cwd=bundle)
        assert result.returncode == 0, result.stderr
        first, _, rest = result.stdout.partition("\n")
        assert first == "fenced /bin/sh"
        return rest

    return run


def test_a_container_has_its_gpu_and_makes_no_other_device(run: Run) -> None:
    script = """
    ls /dev | grep nvidia
    mknod /tmp/nvidia1 c 195 1 && echo out
    mknod /tmp/pipe p && ls /tmp
    """
    allow_mknod = {"allow": True, "type": "c", "access": "m"}
    said = run(script, lambda config: config["linux"]["resources"]["devices"].append(allow_mknod))
    assert said.split() == ["nvidia-uvm", "nvidia0", "nvidiactl", "pipe"]


# Each attempt prints "out" if it succeeds.
ATTEMPTS = {
    "unmount": "umount /.vgpumgr/native && echo out",
    "unmount-all": "umount -l /.vgpumgr && echo out",
    "rename": "mv /.vgpumgr /tmp/x && echo out",
    "rename-launcher": "mv /.vgpumgr/native /tmp/x && echo out",
    "remove": "rm -f /.vgpumgr/native && echo out",
    "replace": "cp -f --remove-destination /bin/true /.vgpumgr/native && echo out",
    "write": "echo x >/.vgpumgr/native && echo out",
    "mount-over": "mount --bind /bin/true /.vgpumgr/native && echo out",
    "namespace": "unshare --user --mount true && echo out",
    "mount-namespace": "unshare --mount true && echo out",
    "enter-namespace": "nsenter --mount=/proc/1/ns/mnt true && echo out",
}
HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


def filter_of(kind: str) -> dict[str, Any] | None:
    """A container's own filter, in the two forms of engines: a list of refused calls, or of all allowed calls."""
    if kind == "refusing":
        return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["reboot"], "action": "SCMP_ACT_ERRNO"}]}
    if kind == "allowing":
        names = re.findall(r"#define __NR_(\w+)", HEADER.read_text())
        return {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": names, "action": "SCMP_ACT_ALLOW"}]}
    return None


@pytest.mark.parametrize("kind", ["none", "refusing", "allowing"])
def test_nothing_takes_the_launchers_place(run: Run, kind: str) -> None:
    """All attempts run as the container's root, in one container, because each container takes long to start."""

    def change(config: dict[str, Any]) -> None:
        if found := filter_of(kind):
            config["linux"]["seccomp"] = found

    said = run("\n".join(f"echo {name}; {attempt}" for name, attempt in ATTEMPTS.items()) + "\ntrue", change)
    assert said.split() == list(ATTEMPTS)


def test_without_us_some_of_that_succeeds(host: Host, tmp_path: Path) -> None:
    """Without this check, the test above would prove nothing."""
    config = configuration(
        "/bin/sh", "-c", "mkdir /.vgpumgr && mv /.vgpumgr /x && echo out; unshare --user --mount true && echo out"
    )
    config["process"]["capabilities"] = {}
    bundle = make_bundle(tmp_path / "bundle", config)
    assert host.call("run", f"vgpumgr-{os.getpid()}-free", cwd=bundle).stdout.split() == ["out", "out"]


# For each process id that it receives, the intruder prints whether it can write into that process's memory.
INTRUDER = """
while read pid; do
    if (exec 3<>/proc/$pid/mem) 2>/dev/null; then echo in; else echo out; fi
done </tmp/asked >/tmp/answered
"""


@pytest.fixture
def running(host: Host, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A container whose first process is an intruder, and its bundle."""
    name = f"vgpumgr-{os.getpid()}-waits"
    bundle = make_bundle(tmp_path / "bundle", configuration("/bin/sh", "-c", INTRUDER, tenant="blue"))
    for pipe in ("asked", "answered"):
        os.mkfifo(bundle / "rootfs/tmp" / pipe)
    # Output goes to a file, because the container would keep pipes open.
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            host.command("run", "--detach", name), cwd=bundle, env=host.environment(), stdin=subprocess.DEVNULL,
            stdout=out, stderr=out, timeout=LIMIT_S, check=True,
        )  # fmt: skip
    try:
        yield name, bundle
    finally:
        subprocess.run(["runc", "delete", "--force", name], check=True)


def test_a_later_process_is_behind_the_launcher_too(host: Host, running: tuple[str, Path]) -> None:
    name, bundle = running
    process = bundle / "process.json"
    process.write_text(json.dumps({"args": ["/bin/echo", "here"], "cwd": "/", "user": {"uid": 0, "gid": 0}}))
    result = host.call("exec", "--process", str(process), name, cwd=bundle)
    assert result.stdout == "fenced /bin/echo\nhere\n", result.stderr
    refused = host.call("exec", name, "/bin/echo", "here", cwd=bundle)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "is started with `exec --process FILE ID`" in refused.stderr
    # The wrapper trusts the runtime's state and not a file that could have been changed.
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps({**config, "annotations": {}}))
    assert host.call("exec", name, "/bin/echo", "here", cwd=bundle).returncode == 1


def test_a_program_gets_into_its_own_processes_and_none_of_a_later_one(host: Host, running: tuple[str, Path]) -> None:
    name, bundle = running
    process, pid_file = bundle / "process.json", bundle / "pid"
    process.write_text(json.dumps({"args": ["/bin/sleep", "infinity"], "cwd": "/", "user": {"uid": 0, "gid": 0}}))
    command = host.command("exec", "--detach", "--pid-file", str(pid_file), "--process", str(process), name)
    # No pipes here, because the container would keep them open.
    subprocess.run(command, cwd=bundle, env=host.environment(), stdin=subprocess.DEVNULL, check=True, timeout=LIMIT_S)
    status = Path(f"/proc/{pid_file.read_text()}/status").read_text()
    later = re.findall(r"^NSpid:.*\t(\d+)$", status, re.MULTILINE)[0]
    wait_for(lambda: Path(f"/proc/{pid_file.read_text()}/comm").read_text() == "sleep\n", "the program")
    temporary = bundle / "rootfs/tmp"
    with (temporary / "asked").open("w") as asked, (temporary / "answered").open() as answered:
        print(1, later, sep="\n", file=asked, flush=True)
        assert [answered.readline() for _ in range(2)] == ["in\n", "out\n"]
