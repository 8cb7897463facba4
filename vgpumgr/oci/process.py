# SPDX-License-Identifier: Apache-2.0
"""One process of a container, from config.json or process.json: checks it, and puts the launcher before its program."""

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vgpumgr.errors import ContainerRefusedError
from vgpumgr.oci.host import Given

DIRECTORY = "/.vgpumgr"
LAUNCHER = f"{DIRECTORY}/native"
SOCKET = f"{DIRECTORY}/tenant.sock"
LIBRARY_DIRECTORY = f"{DIRECTORY}/lib"
LIBRARY_PATH = "LD_LIBRARY_PATH"
BEFORE = (LAUNCHER, "--contained", "--socket", SOCKET, "--")
WAYS_OUT = ("BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO")
"""Capabilities by which a process could mount over the launcher, or get into a process without a fence."""

Ids = Sequence[Mapping[str, int]]


def fenced(process: Any, *, where: str) -> dict[str, Any]:
    """Return the process with the launcher before its program. `where`: for errors. ContainerRefusedError."""
    if not isinstance(process, dict):
        raise ContainerRefusedError(f"{where} has no process")
    arguments = process.get("args")
    if not isinstance(arguments, list) or not arguments or not all(isinstance(each, str) for each in arguments):
        raise ContainerRefusedError(f"{where}: process.args must be a list of texts, the program first")
    _check_capabilities(process.get("capabilities"), where)
    if tuple(arguments[: len(BEFORE)]) == BEFORE and len(arguments) > len(BEFORE):  # added by an earlier call
        arguments = arguments[len(BEFORE) :]
    return {**process, "args": [*BEFORE, *arguments], "env": _environment(process.get("env"), where)}


def _check_capabilities(sets: Any, where: str) -> None:
    if sets is None:
        return
    if not isinstance(sets, dict) or not all(isinstance(each, list) for each in sets.values()):
        raise ContainerRefusedError(f"{where}: process.capabilities do not follow the OCI specification")
    had = {str(name).upper().removeprefix("CAP_") for each in sets.values() for name in each}
    if ways := sorted(had & set(WAYS_OUT)):
        raise ContainerRefusedError(
            f"{where}: a process could bypass the fence with {', '.join(f'CAP_{name}' for name in ways)}; start it"
            " without --privileged, or without adding these"
        )


def _environment(variables: Any, where: str) -> list[str]:
    """Add the directory of the driver's libraries after the directories that the image names."""
    if variables is None:
        variables = []
    if not isinstance(variables, list) or not all(isinstance(each, str) for each in variables):
        raise ContainerRefusedError(f"{where}: process.env must be a list of texts")
    before = [each for each in variables if each.startswith(f"{LIBRARY_PATH}=")]
    directories = [each for each in (before or ["="])[-1].partition("=")[2].split(":") if each != LIBRARY_DIRECTORY]
    path = ":".join([*filter(None, directories), LIBRARY_DIRECTORY])
    return [*(each for each in variables if each not in before), f"{LIBRARY_PATH}={path}"]


def check_access(process: Mapping[str, Any], linux: Mapping[str, Any], given: Given) -> None:
    """Check that the process may connect to the tenant's socket, and may open device nodes that are the host's own.

    ContainerRefusedError. In a user namespace a runtime cannot create nodes, so the container uses the host's nodes.
    """
    user = process.get("user") or {}
    if not isinstance(user, dict):
        raise ContainerRefusedError("process.user is not a table")
    uid = _on_host(user.get("uid", 0), linux.get("uidMappings"), "uid")
    numbers = (user.get("gid", 0), *(user.get("additionalGids") or ()))
    gids = [_on_host(number, linux.get("gidMappings"), "gid") for number in numbers]
    status = given.socket.stat()
    if not _may_write(given.socket, status.st_mode, status.st_uid, status.st_gid, uid, gids):
        raise ContainerRefusedError(
            f"the container's process is user {uid} of the host, who may not use tenant {given.tenant}; see socket_mode"
            " and socket_group of the tenant"
        )
    if not linux.get("uidMappings") and uid:
        return
    for node in given.nodes:
        if not _may_write(node.source, node.mode, node.uid, node.gid, uid, gids):
            raise ContainerRefusedError(
                f"in a user namespace the container has the host's own {node.path}, and its process is user {uid} of"
                " the host, who may not open it; run the container without a user namespace"
            )


def _on_host(number: Any, mappings: Any, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise ContainerRefusedError(f"process.user: {what} must be a number")
    if not mappings:
        return number
    for each in mappings if isinstance(mappings, list) else ():
        first, size = each.get("containerID"), each.get("size")
        if isinstance(first, int) and isinstance(size, int) and first <= number < first + size:
            return int(each.get("hostID", 0)) + number - first
    raise ContainerRefusedError(f"process.user: linux.{what}Mappings have no {what} {number}")


def _may_write(path: Path, mode: int, owner: int, group: int, uid: int, gids: Sequence[int]) -> bool:
    """Whether the user may write. User 0 is the user of the engine: root, or root in a rootless engine's namespace."""
    if uid == 0:
        return os.access(path, os.W_OK)
    if uid == owner:
        return bool(mode & stat.S_IWUSR)
    return bool(mode & (stat.S_IWGRP if group in gids else stat.S_IWOTH))
