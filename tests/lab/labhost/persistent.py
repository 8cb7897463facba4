# SPDX-License-Identifier: Apache-2.0
"""The one lab host that keeps running: `lab up`, `lab shell`, `lab down`.

Its state lies in build/lab/up: `up` creates it, `down` removes it. QEMU runs in its own session under timeout(1), so
that a forgotten lab host ends by itself. It is reached by ssh on a port of 127.0.0.1.
"""

import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from labhost.command import tail
from labhost.errors import LabError
from labhost.paths import Paths
from labhost.progress import say
from labhost.run import Options, machine, parts_of
from labhost.toolchain import KERNELS

_BOOT_LIMIT_S = 300.0
_EXIT_LIMIT_S = 10.0


def up(paths: Paths, options: Options) -> None:
    """Start the lab host and return when it answers. Raises LabError if one is up already."""
    if options.minimal:
        raise LabError("the minimal lab host has no ssh: use `run --minimal`")
    if KERNELS[options.kernel].is_user_mode:
        raise LabError("User-mode Linux has no ssh: use `run`")
    state = paths.persistent
    parts = parts_of(paths, options)
    with _locked(state):
        if _pid(state) is not None:
            raise LabError("a lab host is up already: `lab shell` enters it, `lab down` ends it")
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir(parents=True)
        _make_key(state)
        port = _free_port()
        (state / "port").write_text(str(port), encoding="ascii")
        public_key = (state / "key.pub").read_bytes()
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in options.environ.items())
        host = machine(
            paths, options, parts, state, f"{exports}exec lab-sshd\n",
            ssh_port=port,
            job_files={"authorized_keys": public_key, "environment": exports.encode()},
        )  # fmt: skip
        limit = ["timeout", "--kill-after=5", f"{options.timeout_s:.0f}"]
        with (state / "output.log").open("wb") as log, (state / "qemu.log").open("wb") as errors:
            child = subprocess.Popen(
                [*limit, *parts.qemu, *host.arguments()],
                stdin=subprocess.DEVNULL, stdout=log, stderr=errors, start_new_session=True,
            )  # fmt: skip
        (state / "pid").write_text(str(child.pid), encoding="ascii")
        try:
            _wait_for_ssh(state, child)
        except BaseException:
            _end(child.pid)
            raise
    say(f"the lab host is up; it ends by itself after {options.timeout_s:.0f} s; logs: {state}")


def down(paths: Paths) -> None:
    """End the lab host; nothing happens if none is up."""
    with _locked(paths.persistent):
        pid = _pid(paths.persistent)
        if pid is not None:
            _end(pid)
            say("the lab host is down")
        shutil.rmtree(paths.persistent, ignore_errors=True)


def shell(paths: Paths, words: Sequence[str]) -> int:
    """Run a command in the lab host, or an interactive shell; return its exit status."""
    state = paths.persistent
    if _pid(state) is None:
        raise LabError("no lab host is up: start one with `lab up`")
    prepare = ". /lab/job/environment; export LAB=1; cd /checkout"
    if not words:
        return subprocess.call([*_ssh(state), "-t", f"{prepare}; exec bash -i"])
    command = ["bash", "-c", words[0]] if len(words) == 1 else list(words)
    return subprocess.call([*_ssh(state), f"{prepare}; exec {shlex.join(command)}"])


def describe(paths: Paths) -> str:
    """One line on whether a lab host is up."""
    state = paths.persistent
    pid = _pid(state)
    if pid is None:
        return "no lab host is up"
    return f"a lab host is up: process {pid}, ssh on 127.0.0.1:{(state / 'port').read_text()}, state in {state}"


def _ssh(state: Path) -> list[str]:
    # the control socket's path must be short (sockaddr_un), and a checkout's may not be
    control = f"/tmp/lab-ssh-{os.getuid()}-{_pid(state)}"
    return [
        "ssh", "-q", "-F", "none", "-i", str(state / "key"), "-p", (state / "port").read_text(encoding="ascii"),
        "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
        "-o", "ControlMaster=auto", "-o", f"ControlPath={control}", "-o", "ControlPersist=600",
        "-o", "ConnectTimeout=20", "root@127.0.0.1",
    ]  # fmt: skip


def _wait_for_ssh(state: Path, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _BOOT_LIMIT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            break
        try:
            # the timeout is also needed because QEMU accepts on the port before sshd runs
            if subprocess.call([*_ssh(state), "true"], stdin=subprocess.DEVNULL, timeout=30) == 0:
                return
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.3)
    logs = "\n".join(tail(state / name) for name in ("serial.log", "output.log", "qemu.log"))
    raise LabError(f"the lab host did not come up:\n{logs}")


def _pid(state: Path) -> int | None:
    """The process group leader of the running lab host; another process with a recycled number does not count."""
    try:
        pid = int((state / "pid").read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return pid if str(state).encode() in command else None


def _end(pid: int) -> None:
    deadline = time.monotonic() + _EXIT_LIMIT_S
    number = signal.SIGTERM
    while time.monotonic() < deadline:
        try:
            os.killpg(pid, number)
            os.waitpid(pid, os.WNOHANG)
        except ProcessLookupError:
            return
        except ChildProcessError:
            pass  # another process started it
        number = signal.SIGKILL
        time.sleep(0.3)


def _make_key(state: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(state / "key")]
    subprocess.run(command, check=True, timeout=60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    state.parent.mkdir(parents=True, exist_ok=True)
    with (state.parent / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
