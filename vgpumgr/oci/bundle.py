# SPDX-License-Identifier: Apache-2.0
"""A bundle's config.json: refuses settings that would let a process bypass the fence, and adds the tenant's GPU.

Applying it twice gives the same result: entries equal to ours are removed first and then added again.
"""

import posixpath
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vgpumgr.errors import ContainerRefusedError
from vgpumgr.oci.host import Given
from vgpumgr.oci.process import DIRECTORY, LAUNCHER, LIBRARY_DIRECTORY, SOCKET, check_access, fenced
from vgpumgr.oci.syscalls import restrict

WHERE = "config.json"
NOWHERE = {"allow": False, "access": "rwm"}
OPEN_TO_ALL = 0o666
"""Mode of device nodes in the container. Every process that can open them there is fenced."""
OWN_NAMESPACES = ("mount", "pid")
ADDS_DEVICES = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
"""NVIDIA's own hooks, which `docker run --gpus` has an engine write into the file."""
OVERRIDES = ("run.oci.handler", "run.oci.seccomp", "org.systemd.property.Device")
"""Annotations that make crun use another system call filter, and runc other device rules."""


def given_to(config: Any, bundle: Path, given: Given) -> dict[str, Any]:
    """Return the configuration of a container that has the tenant's GPU. ContainerRefusedError."""
    if not isinstance(config, dict) or not isinstance(config.get("linux"), dict):
        raise ContainerRefusedError(f"{WHERE} is not for a Linux container")
    if others := [name for name in ("solaris", "vm", "windows", "zos") if config.get(name)]:
        raise ContainerRefusedError(f"{WHERE}: {others[0]}: only Linux containers can have a GPU")
    linux = config["linux"]
    process = fenced(config.get("process"), where=WHERE)
    _check_hooks(config.get("hooks"))
    _check_namespaces(linux)
    _check_annotations(config.get("annotations") or {})
    _check_masks(linux.get("maskedPaths") or [])
    _check_root(config.get("root"), bundle)
    check_access(process, linux, given)
    return {
        **config,
        "process": process,
        "mounts": _mounts(config.get("mounts"), given),
        "linux": {
            **linux,
            "devices": _devices(linux.get("devices"), given),
            "resources": _resources(linux.get("resources"), given),
            "seccomp": restrict(linux.get("seccomp")),
        },
    }


def _check_hooks(hooks: Any) -> None:
    if hooks is None:
        return
    if hooks.get("startContainer"):
        raise ContainerRefusedError(f"{WHERE}: hooks.startContainer would run in the container without the fence")
    paths = [str(each.get("path")) for found in hooks.values() for each in found or ()]
    if adding := [path for path in paths if posixpath.basename(path) in ADDS_DEVICES]:
        raise ContainerRefusedError(
            f"{WHERE}: the hook {adding[0][:80]} would add devices; start the container without --gpus, because"
            " vgpumgr-oci adds those of its tenant"
        )


def _check_namespaces(linux: Mapping[str, Any]) -> None:
    namespaces = _list(linux.get("namespaces"), "linux.namespaces")
    for kind in OWN_NAMESPACES:
        if not any(each.get("type") == kind and not each.get("path") for each in namespaces):
            raise ContainerRefusedError(
                f"{WHERE}: the container has no {kind} namespace of its own, so it could enter processes without a"
                " fence"
            )
    if any(each.get("type") == "user" and each.get("path") for each in namespaces):
        raise ContainerRefusedError(f"{WHERE}: the container shares another's user namespace; give it one of its own")


def _check_annotations(annotations: Mapping[str, Any]) -> None:
    if found := sorted(name for name in annotations if name.startswith(OVERRIDES)):
        raise ContainerRefusedError(
            f"{WHERE}: the annotation {found[0][:80]!r} would make the runtime deviate from this file"
        )


def _check_masks(paths: Any) -> None:
    for path in paths:
        if _is_ours(str(path)):
            raise ContainerRefusedError(f"{WHERE}: linux.maskedPaths has {str(path)[:80]!r}, which hides the launcher")


def _check_root(root: Any, bundle: Path) -> None:
    """Refuse a symbolic link at our directory's place: it would lead to files that the container can replace."""
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not path:
        raise ContainerRefusedError(f"{WHERE}: root.path is missing")
    place = bundle / path / DIRECTORY.lstrip("/")
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ContainerRefusedError(f"{place}: {(error.strerror or str(error)).lower()}") from None
    if not stat.S_ISDIR(mode):
        raise ContainerRefusedError(f"the image has a {DIRECTORY} that is not a directory; vgpumgr needs that name")


# ---- entries that are added


def _mounts(mounts: Any, given: Given) -> list[dict[str, Any]]:
    """Add a tmpfs at our directory, with launcher, socket and libraries. A mount point cannot be renamed."""

    def bound(destination: str, source: Path, *more: str) -> dict[str, Any]:
        options = ["bind", "ro", "nosuid", "nodev", *more]
        return {"destination": destination, "type": "bind", "source": str(source), "options": options}

    options = ["nosuid", "nodev", "mode=0755", "size=64k"]
    ours = [
        {"destination": DIRECTORY, "type": "tmpfs", "source": "vgpumgr", "options": options},
        bound(LAUNCHER, given.launcher),
        bound(SOCKET, given.socket, "noexec"),
        *(bound(f"{LIBRARY_DIRECTORY}/{name}", path) for name, path in sorted(given.libraries.items())),
    ]
    kept = [each for each in _list(mounts, "mounts") if each not in ours]
    for each in kept:
        if _is_ours(place := str(each.get("destination", ""))):
            raise ContainerRefusedError(f"{WHERE}: a mount at {place[:80]!r} would hide the launcher")
    return [*kept, *ours]


def _is_ours(path: str) -> bool:
    """Whether the path is our directory, above it or below it."""
    place = posixpath.normpath(f"/{path}").replace("//", "/")
    return place in ("/", DIRECTORY) or place.startswith(f"{DIRECTORY}/")


def _devices(devices: Any, given: Given) -> list[dict[str, Any]]:
    ours = [
        {
            "path": node.path,
            "type": "c",
            "major": node.major,
            "minor": node.minor,
            "fileMode": OPEN_TO_ALL,
            "uid": 0,
            "gid": 0,
        }
        for node in given.nodes
    ]
    numbers = {(node.major, node.minor) for node in given.nodes}
    paths = {node.path for node in given.nodes}
    kept = []
    for each in _list(devices, "linux.devices"):
        major, path = each.get("major"), each.get("path")
        if (major, each.get("minor")) in numbers and path in paths and each.get("type") == "c":
            continue
        if path in paths or (major in given.majors and each.get("type") in ("c", "u")):
            raise ContainerRefusedError(
                f"{WHERE}: linux.devices has {str(path)[:80]!r}, which is not of tenant {given.tenant}'s GPU; leave"
                " NVIDIA's devices to vgpumgr-oci"
            )
        kept.append(each)
    return [*kept, *ours]


def _resources(resources: Any, given: Given) -> dict[str, Any]:
    """Allow the tenant's GPU. Refuse rules that allow other GPUs or every device."""
    if resources is None:
        resources = {}
    if not isinstance(resources, dict):
        raise ContainerRefusedError(f"{WHERE}: linux.resources is not a table")
    numbers = {(node.major, node.minor) for node in given.nodes}
    kept = []
    for rule in _list(resources.get("devices"), "linux.resources.devices"):
        if rule.get("allow") and _opens(rule) and rule.get("type") != "b":
            major, minor = rule.get("major"), rule.get("minor")
            if (major, minor) in numbers:
                continue
            if major in (None, -1) or major in given.majors:
                raise ContainerRefusedError(
                    f"{WHERE}: linux.resources.devices would open devices that are not tenant {given.tenant}'s; start"
                    " the container without --privileged and without NVIDIA's devices"
                )
        kept.append(rule)
    if NOWHERE not in kept:
        kept.insert(0, NOWHERE)
    ours = [
        {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"} for node in given.nodes
    ]
    return {**resources, "devices": [*kept, *ours]}


def _opens(rule: Mapping[str, Any]) -> bool:
    """Whether the rule allows more than to create device nodes."""
    access = rule.get("access") or "rwm"
    return "r" in access or "w" in access


def _list(found: Any, name: str) -> list[dict[str, Any]]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ContainerRefusedError(f"{WHERE}: {name} must be a list of tables")
    return found
