# SPDX-License-Identifier: Apache-2.0
"""An engine's request to a runtime, in the commands and options that runc and crun have in common.

Everything unknown is refused: a misread option could start a process without the fence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vgpumgr.errors import ContainerRefusedError

TAKES_VALUE, IS_SWITCH = True, False

_GLOBAL = {
    "--cgroup-manager": TAKES_VALUE,
    "--criu": TAKES_VALUE,
    "--debug": IS_SWITCH,
    "--log": TAKES_VALUE,
    "--log-format": TAKES_VALUE,
    "--log-level": TAKES_VALUE,
    "--root": TAKES_VALUE,
    "--rootless": TAKES_VALUE,
    "--systemd-cgroup": IS_SWITCH,
}
_TELLS = {"--help", "-h", "-?", "--usage", "--version", "-v", "-V"}
_STARTS = {
    "--bundle": TAKES_VALUE,
    "-b": TAKES_VALUE,
    "--config": TAKES_VALUE,
    "-f": TAKES_VALUE,
    "--console-socket": TAKES_VALUE,
    "--detach": IS_SWITCH,
    "-d": IS_SWITCH,
    "--keep": IS_SWITCH,
    "--no-new-keyring": IS_SWITCH,
    "--no-pivot": IS_SWITCH,
    "--no-subreaper": IS_SWITCH,
    "--pid-file": TAKES_VALUE,
    "--pidfd-socket": TAKES_VALUE,
    "--preserve-fds": TAKES_VALUE,
}
_RESTORES = {
    **_STARTS,
    "--auto-dedup": IS_SWITCH,
    "--empty-ns": TAKES_VALUE,
    "--ext-unix-sk": IS_SWITCH,
    "--file-locks": IS_SWITCH,
    "--image-path": TAKES_VALUE,
    "--lazy-pages": IS_SWITCH,
    "--lsm-mount-context": TAKES_VALUE,
    "--lsm-profile": TAKES_VALUE,
    "--manage-cgroups-mode": TAKES_VALUE,
    "--parent-path": TAKES_VALUE,
    "--shell-job": IS_SWITCH,
    "--tcp-established": IS_SWITCH,
    "--work-path": TAKES_VALUE,
}
# Settings of a process must be in its file, where they can be checked.
_EXECUTES = {
    "--console-socket": TAKES_VALUE,
    "--detach": IS_SWITCH,
    "-d": IS_SWITCH,
    "--ignore-paused": IS_SWITCH,
    "--pid-file": TAKES_VALUE,
    "--pidfd-socket": TAKES_VALUE,
    "--preserve-fds": TAKES_VALUE,
    "--process": TAKES_VALUE,
    "-p": TAKES_VALUE,
    "--tty": IS_SWITCH,
    "-t": IS_SWITCH,
}
_EXECUTES_UNSEEN = {
    "--additional-gids": TAKES_VALUE,
    "-g": TAKES_VALUE,
    "--apparmor": TAKES_VALUE,
    "--cap": TAKES_VALUE,
    "-c": TAKES_VALUE,
    "--cgroup": TAKES_VALUE,
    "--cwd": TAKES_VALUE,
    "--env": TAKES_VALUE,
    "-e": TAKES_VALUE,
    "--no-new-privs": IS_SWITCH,
    "--process-label": TAKES_VALUE,
    "--user": TAKES_VALUE,
    "-u": TAKES_VALUE,
}
_OPTIONS = {
    "create": _STARTS,
    "run": _STARTS,
    "restore": _RESTORES,
    "exec": {**_EXECUTES, **_EXECUTES_UNSEEN},
}
_HARMLESS = {
    *("checkpoint", "delete", "events", "features", "help", "kill", "list", "pause", "ps", "resume", "spec", "start"),
    *("state", "update"),
}
"""Commands that start no process in a container, or only the process that `create` has prepared."""
_LONG = {"-b": "--bundle", "-f": "--config", "-p": "--process"}


@dataclass(frozen=True)
class Command:
    """A command line. `before`: the arguments before the command's name. `name`: "" if there is none."""

    before: tuple[str, ...] = ()
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()

    @property
    def unseen(self) -> list[str]:
        """Options of `exec` that change a process but are not in its file."""
        return sorted(name for name in self.options if name in _EXECUTES_UNSEEN)


def parse(arguments: Sequence[str]) -> Command:
    """Parse the engine's request. ContainerRefusedError."""
    _, at = _options(arguments, 0, _GLOBAL, "")
    before = tuple(arguments[:at])
    if at == len(arguments) or arguments[at] in _TELLS:
        return Command(before=before)
    name = arguments[at]
    known = _OPTIONS.get(name)
    if known is None:
        if name not in _HARMLESS:
            raise ContainerRefusedError(
                f"{_shown(name)} is a command that vgpumgr-oci does not know; use the runtime itself"
            )
        return Command(before=before, name=name, rest=tuple(arguments[at + 1 :]))
    if any(each in _TELLS for each in arguments[at + 1 : at + 2]):
        return Command(before=before)
    options, end = _options(arguments, at + 1, known, name)
    rest = tuple(arguments[end:])
    if name != "exec" and len(rest) != 1:  # crun accepts options after the id, too
        raise ContainerRefusedError(f"`{name}` takes the id of one container, after the options")
    return Command(before=before, name=name, options=options, rest=rest)


def log(arguments: Sequence[str]) -> tuple[str, str]:
    """Return the file in which the engine looks for errors, "" for none, and its format."""
    try:
        found, _ = _options(arguments, 0, _GLOBAL, "")
    except ContainerRefusedError:
        return "", ""
    return found.get("--log", ""), found.get("--log-format", "text")


def _options(arguments: Sequence[str], at: int, known: Mapping[str, bool], command: str) -> tuple[dict[str, str], int]:
    """Return the options from `at` on, by their long names, and the index where they end."""
    found = {}
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in _TELLS:
        name, has_value, value = arguments[at].partition("=")
        if name not in known or (has_value and not name.startswith("--")):
            where = f"of `{command}` " if command else ""
            raise ContainerRefusedError(f"{_shown(name)} is an option {where}that vgpumgr-oci does not know")
        at += 1
        if known[name] and not has_value:
            if at == len(arguments):
                raise ContainerRefusedError(f"{name} needs a value")
            value = arguments[at]
            at += 1
        long = _LONG.get(name, name)
        if long in found and long in _LONG.values():
            raise ContainerRefusedError(f"{long} is given twice")
        found[long] = value
    return found, at


def _shown(text: str) -> str:
    return repr(text[:80])
