# SPDX-License-Identifier: Apache-2.0
"""System calls that a container must not make, so that no other file can take the launcher's place.

A later `exec` starts `/.vgpumgr/native` in the file system that the container's first process has at that time.
Therefore that process must not be able to mount, or to enter another file system through a new user namespace.
"""

from typing import Any

from vgpumgr.errors import ContainerRefusedError

EPERM, ENOSYS = 1, 38
NEW_MOUNT_NAMESPACE, NEW_USER_NAMESPACE = 0x00020000, 0x10000000
FORBIDDEN = (
    *("fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree"),
    *("open_tree_attr", "pivot_root", "setns", "umount", "umount2", "unshare"),
)
NEEDED = ("landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self")
"""Calls that the launcher makes, and that filters of engines from before 2022 do not allow."""
ALLOW, ERRNO, NOTIFY = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_NOTIFY"
PERMISSIVE = (ALLOW, "SCMP_ACT_LOG", "SCMP_ACT_TRACE")


def restrict(seccomp: Any) -> dict[str, Any]:
    """Add our rules to a container's system call filter, which is None if it has no filter. ContainerRefusedError."""
    if seccomp is None:
        seccomp = {"defaultAction": ALLOW}
    rules = _rules(seccomp)
    if seccomp.get("listenerPath") or NOTIFY in (seccomp["defaultAction"], *(rule["action"] for rule in rules)):
        raise ContainerRefusedError(
            "linux.seccomp lets another program answer system calls (SCMP_ACT_NOTIFY); the kernel allows one such"
            " program, which must be the fence"
        )
    # `clone3` passes its flags in memory, which no filter can read. Programs fall back to `clone` on ENOSYS.
    ours = {*FORBIDDEN, *NEEDED, "clone", "clone3"}
    kept = [{**rule, "names": left} for rule in rules if (left := [name for name in rule["names"] if name not in ours])]
    return {**seccomp, "syscalls": [*kept, *_ours(seccomp["defaultAction"])]}


def _ours(default: str) -> list[dict[str, Any]]:
    refused = [
        {"names": list(FORBIDDEN), "action": ERRNO, "errnoRet": EPERM},
        {"names": ["clone3"], "action": ERRNO, "errnoRet": ENOSYS},
    ]
    flags = (NEW_MOUNT_NAMESPACE, NEW_USER_NAMESPACE)
    if default not in PERMISSIVE:
        allowed: list[dict[str, Any]] = [
            {"names": ["clone"], "action": ALLOW, "args": [_masked(sum(flags), 0)]},
            {"names": list(NEEDED), "action": ALLOW},
        ]
        return [*refused, *allowed]
    return [
        *refused,
        *({"names": ["clone"], "action": ERRNO, "errnoRet": EPERM, "args": [_masked(flag, flag)]} for flag in flags),
    ]


def _masked(mask: int, value: int) -> dict[str, Any]:
    return {"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _rules(seccomp: Any) -> list[dict[str, Any]]:
    rules = seccomp.get("syscalls") or [] if isinstance(seccomp, dict) else None
    if (
        not isinstance(rules, list)
        or not isinstance(seccomp.get("defaultAction"), str)
        or not all(_is_rule(rule) for rule in rules)
    ):
        raise ContainerRefusedError("linux.seccomp does not follow the OCI specification")
    return rules


def _is_rule(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and isinstance(rule.get("action"), str)
        and isinstance(rule.get("names"), list)
        and all(isinstance(name, str) for name in rule["names"])
    )
