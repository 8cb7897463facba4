# SPDX-License-Identifier: Apache-2.0
"""A host for `vgpumgr-oci`: a broker's run directory, the GPU's device nodes, a launcher, and bundles of containers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
UVM_MAJOR = 510
BEFORE = ["/.vgpumgr/native", "--contained", "--socket", "/.vgpumgr/tenant.sock", "--"]
NODES = {"nvidiactl": (195, 255), "nvidia0": (195, 0), "nvidia-uvm": (UVM_MAJOR, 0)}

# Reports its start and then runs the program, like the real launcher.
LAUNCHER = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "native/contained.h"

int main(int count, char **arguments)
{
	if (count < 6 || strcmp(*++arguments, "--contained") || vgpu_contain())
		return 125;
	if (strcmp(arguments[1], "--socket") || access(arguments[2], W_OK) || strcmp(arguments[3], "--"))
		return 125;
	printf("fenced %s\n", arguments[4]);
	fflush(stdout);
	execvp(arguments[4], arguments + 4);
	return 127;
}
"""
SAYING_RUNTIME = """#!/bin/sh
case "$*" in *state*) cat "$STATE"; exit ;; esac
printf '%s\\n' "$*"
"""
WRAPPER = """
import os, sys
from pathlib import Path
from vgpumgr.broker import places
from vgpumgr.oci import host, main
root, programs, cache = map(Path, sys.argv[1:4])
places.CHECKOUT = programs
host.loader_cache = cache.read_text
sys.exit(main.main(sys.argv[4:], os.environ, root=root))
"""


class Host:
    """All files that the wrapper looks for, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.programs = folder / "programs"
        self.cache = folder / "ldconfig"
        (self.root / "dev").mkdir(parents=True)
        self.cache.write_text("")
        (self.root / "proc").mkdir()
        (self.root / "proc/devices").write_text(
            f"Character devices:\n195 nvidia\n236 nvidia-caps\n{UVM_MAJOR} nvidia-uvm\n\nBlock devices:\n236 sd\n"
        )
        for name, (major, minor) in NODES.items():
            self.make_node(name, major, minor)
        self.sockets = contextlib.ExitStack()
        self.run = self.broker("vgpumgr-broker", 0, "blue", "red")

    def make_node(self, name: str, major: int, minor: int, mode: int = 0o600) -> None:
        path = self.root / "dev" / name
        os.mknod(path, 0o020000 | mode, os.makedev(major, minor))

    def broker(self, name: str, gpu: int, *tenants: str) -> Path:
        """Make the run directory of a broker."""
        directory = self.root / "run" / name
        directory.mkdir(parents=True)
        (directory / "nvidia").write_text(f"{gpu}\n")
        (directory / "control").touch()
        for tenant in tenants:
            listener = self.sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            here = Path.cwd()
            os.chdir(directory)  # the full path can be too long for a socket
            listener.bind(f"{tenant}.sock")
            os.chdir(here)
            (directory / f"{tenant}.sock").chmod(0o600)
        return directory

    def make_launcher(self) -> None:
        self.programs.mkdir()
        source = self.programs / "launcher.c"
        source.write_text(LAUNCHER)
        contained = ROOT / "compute/native/contained.c"
        command = ["gcc", "-static", "-D_GNU_SOURCE", f"-I{ROOT / 'compute'}", str(source), str(contained)]
        subprocess.run([*command, "-o", str(self.programs / "vgpu-native")], check=True)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", WRAPPER, *map(str, (self.root, self.programs, self.cache)), *arguments]

    def environment(self, runtime: str = "runc", **env: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "VGPUMGR_OCI_RUNTIME": runtime, **env}

    def call(self, *arguments: str, cwd: Path, runtime: str = "runc", **env: str) -> subprocess.CompletedProcess[str]:
        """Call the wrapper like an engine does."""
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd,
            env=self.environment(runtime, **env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )


def make_saying_runtime(folder: Path) -> str:
    """Make a runtime that prints its arguments. For a container's state, it prints the file STATE."""
    path = folder / "saying-runtime"
    path.write_text(SAYING_RUNTIME)
    path.chmod(0o755)
    return str(path)


def configuration(*command: str, **annotations: str) -> dict[str, Any]:
    """A container's configuration as engines write it. Its programs are those of the host."""
    usual = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": ["PATH=/usr/sbin:/usr/bin"],
            "cwd": "/",
            "capabilities": {
                name: ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_MKNOD", "CAP_SETUID"]
                for name in ("bounding", "effective", "permitted")
            },
        },
        "root": {"path": "rootfs"},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": usual},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]},
        ],
        "annotations": {f"vgpumgr.io/{name}": value for name, value in annotations.items()},
        "linux": {
            "namespaces": [{"type": kind} for kind in ("mount", "pid", "ipc", "uts", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }


def make_bundle(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    rootfs = folder / "rootfs"
    for name in ("usr", "proc", "dev", "tmp"):
        (rootfs / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (rootfs / name).symlink_to(f"usr/{name}")
    return folder


def skip_without_containers(folder: Path) -> None:
    """Skip the test if this machine cannot run any container, even without our software."""
    bundle = make_bundle(folder / "plain", configuration("/bin/true"))
    command = ["runc", "run", f"vgpumgr-{os.getpid()}-plain"]
    plain = subprocess.run(command, cwd=bundle, capture_output=True, text=True, timeout=LIMIT_S)
    if plain.returncode:
        pytest.skip(f"runc runs no container here: {plain.stderr}")
