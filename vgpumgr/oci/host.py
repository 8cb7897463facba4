# SPDX-License-Identifier: Apache-2.0
"""Finds this host's files for a tenant's container: launcher, socket, the GPU's nodes, the driver's libraries."""

import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpumgr.broker.control import CONTROL, no_tenant, unreachable
from vgpumgr.broker.launch import NVIDIA
from vgpumgr.errors import ContainerRefusedError

TENANT = "vgpumgr.io/tenant"
GPU = "vgpumgr.io/gpu"
PREFIX = "vgpumgr.io/"
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NUMBER = re.compile(r"[0-9]|[12][0-9]|3[01]")
MAJOR = 195
LIBRARIES = re.compile(r"lib(cuda|nvidia-ml|nvidia-nvvm|nvidia-ptxjitcompiler|nvidia-gpucomp)\.so\.[0-9.]+")
"""The driver's part of CUDA. An image has CUDA's other libraries, which load these."""
DENIED = "it cannot be reached; run the engine as root, or as a user who may use the tenant"


@dataclass(frozen=True)
class Node:
    """A device: its path in the container, the host's own node, its numbers, and its access rights on the host."""

    path: str
    source: Path
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True)
class Given:
    """What a tenant's container receives. `majors`: the device majors of all NVIDIA drivers."""

    tenant: str
    launcher: Path
    socket: Path
    nodes: tuple[Node, ...]
    majors: frozenset[int]
    libraries: Mapping[str, Path]


def tenant_of(annotations: object) -> tuple[str, str] | None:
    """Return the tenant and the GPU that a container's annotations name, None without annotations of ours.

    ContainerRefusedError if our annotations are not valid.
    """
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise ContainerRefusedError("config.json: annotations is not a table")
    ours = {name: value for name, value in annotations.items() if name.startswith(PREFIX)}
    if not ours:
        return None
    unknown = sorted(set(ours) - {TENANT, GPU})
    if unknown or TENANT not in ours:
        said = f"unknown annotation {unknown[0][:80]!r}" if unknown else f"{GPU} needs {TENANT}"
        raise ContainerRefusedError(f"{said}; vgpumgr-oci knows {TENANT} and {GPU}")
    tenant, gpu = ours[TENANT], ours.get(GPU, "")
    if not isinstance(tenant, str) or not NAME.fullmatch(tenant):
        raise ContainerRefusedError(
            f"{TENANT} is {str(tenant)[:80]!r}, which is not a tenant's name: 1 to 63 characters a-z, 0-9 and '-', '-'"
            " not first or last"
        )
    if GPU in ours and (not isinstance(gpu, str) or not NUMBER.fullmatch(gpu)):
        raise ContainerRefusedError(f"{GPU} is {str(gpu)[:80]!r}, and must be the N of a /dev/nvidiaN, 0 to 31")
    return tenant, gpu


def find(tenant: str, gpu: str, directories: Iterable[Path], launcher: Path, root: Path, cache: str) -> Given:
    """Find what the tenant's container receives. `cache`: the output of `ldconfig -p`.

    ContainerRefusedError, BrokerUnreachableError, BrokerRefusedError.
    """
    socket, number = _broker(tenant, gpu, tuple(directories))
    nodes = tuple(_node(root, name) for name in ("nvidiactl", "nvidia-uvm", f"nvidia{number}"))
    return Given(
        tenant=tenant,
        launcher=launcher,
        socket=socket,
        nodes=nodes,
        majors=frozenset({MAJOR, *(node.major for node in nodes), *_majors(root)}),
        libraries=libraries(cache),
    )


def _broker(tenant: str, gpu: str, directories: tuple[Path, ...]) -> tuple[Path, str]:
    """Return the tenant's socket, and the number N of its broker's GPU."""
    brokers = [(directory, number) for directory in directories if (number := _number(directory))]
    if not brokers:
        where = " or ".join(map(str, directories))
        raise ContainerRefusedError(f"no broker with `nvidia = N` has the run directory {where}; start one")
    brokers = [(directory, number) for directory, number in brokers if gpu in ("", number)]
    if not brokers:
        raise ContainerRefusedError(f"{GPU} is {gpu}, and no broker shares /dev/nvidia{gpu}")
    found = [(directory / f"{tenant}.sock", number) for directory, number in brokers]
    there = [(path, number) for path, number in found if _is_socket(path)]
    if len(there) > 1:
        numbers = ", ".join(number for _, number in there)
        raise ContainerRefusedError(f"tenant {tenant} has the GPUs {numbers}; choose one with the annotation {GPU}")
    if there:
        return there[0]
    directory = brokers[0][0]
    if not (directory / CONTROL).exists():
        raise unreachable(directory / CONTROL, FileNotFoundError(2, "no such file"), denied=DENIED)
    raise no_tenant(directory, tenant, (file.stem for each, _ in brokers for file in each.glob("*.sock")))


def _number(directory: Path) -> str:
    try:
        text = (directory / NVIDIA).read_text(encoding="ascii", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise unreachable(directory / NVIDIA, error, denied=DENIED) from None
    return text if NUMBER.fullmatch(text) else ""


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreachable(path, error, denied=DENIED) from None


def _node(root: Path, name: str) -> Node:
    path = root / "dev" / name
    try:
        found = path.stat()
    except OSError as error:
        raise ContainerRefusedError(
            f"{path}: {(error.strerror or str(error)).lower()}; `nvidia-modprobe -u -c 0` loads the driver and makes it"
        ) from None
    if not stat.S_ISCHR(found.st_mode):
        raise ContainerRefusedError(f"{path} is not a character device")
    return Node(
        path=f"/dev/{name}",
        source=path,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
    )


def _majors(root: Path) -> set[int]:
    """Return the majors of all NVIDIA drivers, including those for parts of a GPU and for NVSwitches."""
    text = (root / "proc/devices").read_text(encoding="ascii") if (root / "proc/devices").exists() else ""
    characters = text.partition("Block devices")[0]
    return {int(number) for number, name in re.findall(r"^\s*(\d+) (\S+)$", characters, re.M) if "nvidia" in name}


def libraries(cache: str) -> dict[str, Path]:
    """Return the driver's 64-bit libraries by the names under which programs load them."""
    found: dict[str, Path] = {}
    for name, kind, path in re.findall(r"^\s*(\S+) \((.*)\) => (\S+)$", cache, re.MULTILINE):
        if LIBRARIES.fullmatch(name) and "x86-64" in kind:
            found.setdefault(name, Path(path))
    return found


def loader_cache() -> str:
    """Return the library cache of this host's loader, "" if it cannot be read."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            return subprocess.run([program, "-p"], capture_output=True, text=True, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
    return ""
