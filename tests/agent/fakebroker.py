# SPDX-License-Identifier: Apache-2.0
"""A program that stands in for vgpu-broker behind `vgpumgr broker`, on a host without systemd.

It accepts documents and shows their tenants like the broker does. A test writes the file `broker` below the root to set
how many programs each tenant has and how a change ends.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vgpumgr_agent.helper.broker_services import BrokerRefusedError, Processes
from vgpumgr_agent.helper.brokers import Brokers

from vgpumgr.broker.configuration import check_by_scheduler, document, read
from vgpumgr.broker.control import Control
from vgpumgr.broker.places import programs
from vgpumgr.control.sysfs import HostPaths
from vgpumgr.errors import VgpumgrError

GPU = "0000:3b:00.0"
"""This GPU is set aside for processes; our module does not use it."""

_BROKER = """#!{python} -SE
import json, os, pathlib, signal, socket, sys, time
directory, settings = pathlib.Path(sys.argv[2]), json.load(os.fdopen(int(sys.argv[4])))
said = pathlib.Path({root!r}, "broker")
started_ns, generation = time.monotonic_ns(), 1

def how():
    return json.loads(said.read_text()) if said.exists() else {{}}

if how().get("dies"):
    sys.exit("event=start.failed " + how()["dies"])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

def tenant(each):
    programs = how().get("programs", {{}}).get(each["name"], 0)
    native = {{"programs": programs, "obtained_ns": 1000 * programs, "memory_used_bytes": 7 * programs}}
    stats = {{"leased_ns": 0, "leases": programs}}
    return {{**each, "leaving": False, "native": native, "stats": stats, "processes": [],
            "supervisor": {{"state": how().get("supervisor", "up"), "enforced_by": "firmware"}}}}

def answer(request):
    global settings, generation
    if request["op"] == "set":
        if how().get("refuses"):
            return {{"ok": False, "code": "field.invalid", "field": "", "detail": how()["refuses"]}}
        settings, generation = request["settings"], generation + 1
        return {{"ok": True, "generation": generation}}
    return {{"ok": True, "generation": generation, "started_ns": started_ns, "now_ns": time.monotonic_ns(),
            "native": settings["native"], "nvidia": settings["programs"]["nvidia"],
            "tenants": [tenant(each) for each in settings["tenants"]]}}

path = directory / "control"
path.unlink(missing_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(path))
listener.listen()
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rw") as stream:
        stream.write(json.dumps(answer(json.loads(stream.readline()))) + "\\n")
        stream.flush()
"""

_CLI = """
import pathlib, vgpumgr.broker.places as places
places.programs.__defaults__ = ((pathlib.Path({programs!r}),),)
from vgpumgr.cli.main import run
run()
"""


def directory(root: Path) -> Path:
    """The directory for the brokers of a host with another root. The path of a socket has at most 107 characters, and
    pytest's directories may be longer.
    """
    return Path(tempfile.gettempdir()) / f"vgpumgr-b{root.stat().st_ino}"


class AtOnce(Processes):
    """Does what `vgpumgr broker` does inside this process; a process for each call would take a second."""

    def __init__(self, found: Path) -> None:
        super().__init__()
        self._programs = programs((found,))

    def _document(self, file: str) -> dict[str, Any]:
        try:
            settings = document(read(Path(file)), self._programs)
            check_by_scheduler(settings)
        except VgpumgrError as error:
            raise BrokerRefusedError(f"{error.code}: {error}") from error
        return settings

    def _ask(self, *arguments: str) -> None:
        settings = self._document(arguments[1])
        if arguments[0] == "apply":
            control = Control(Path(arguments[3]))
            try:
                control.set(settings, generation=control.show()["generation"])
            except VgpumgrError as error:
                raise BrokerRefusedError(f"{error.code}: {error}") from error

    def _start(self, gpu: str, directory: Path) -> None:
        self.stop(gpu, directory)
        with tempfile.TemporaryFile() as settings, (directory / "log").open("wb") as log:
            settings.write(json.dumps(self._document(str(directory / "broker.toml"))).encode())
            settings.seek(0)
            file = settings.fileno()
            command = [str(self._programs.broker), "--directory", str(directory), "--settings", str(file)]
            child = subprocess.Popen(command, stderr=log, pass_fds=[file])
        self._children[gpu] = child
        (directory / "pid").write_text(str(child.pid))


def brokers(root: Path, *, command: bool = False) -> Brokers:
    """Brokers of a host without systemd and with another root. `command`: run the real `vgpumgr broker`."""
    found = root / "lib/broker"
    if not found.exists():
        found.mkdir(parents=True)
        for name in ("vgpu-supervisor", "vgpu-child", "libvgpu-opencl.so"):
            (found / name).touch()
        (found / "vgpu-broker").write_text(_BROKER.format(python=sys.executable, root=str(root)))
        (found / "vgpu-broker").chmod(0o755)
    cli = (sys.executable, "-c", _CLI.format(programs=str(found)))
    service = Processes(cli) if command else AtOnce(found)
    return Brokers(directory(root), HostPaths(root).agent_settings, service)


def install(root: Path, *, more: str = "") -> None:
    """Set a GPU aside for processes."""
    settings = HostPaths(root).agent_settings
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f'[gpus."{GPU}"]\nworkload = "process"\n{more}\n[gpus."{GPU}".executor]\nnvidia = 3\n')


def behave(root: Path, **how: Any) -> None:
    """Change how brokers behave from now on: `programs`, `refuses`, `dies`, `supervisor`."""
    (root / "broker").write_text(json.dumps(how))


def shown(root: Path, gpu: str = GPU) -> dict[str, dict[str, Any]]:
    """Return the tenants of a GPU's broker, by name. Raises BrokerUnreachableError."""
    return {each["name"]: each for each in Control(directory(root) / gpu).show()["tenants"]}


def clean(root: Path, found: Brokers) -> None:
    """End all brokers of a test."""
    for broker in found.all():
        for claim in broker["claims"]:
            found.dismiss(uuid=claim["uuid"])
    shutil.rmtree(directory(root), ignore_errors=True)
