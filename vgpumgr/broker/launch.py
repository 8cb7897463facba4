# SPDX-License-Identifier: Apache-2.0
"""Starts a broker, and programs on a tenant's accelerator. The new program replaces this process."""

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vgpumgr.broker.control import CONTROL, SOCKET_PATH_MAX, no_tenant, unreachable
from vgpumgr.broker.places import DIRECTORY_NAME, RUNTIME_DIRECTORY, Programs
from vgpumgr.errors import BrokerUnreachableError, ProgramMissingError, ProgramUnusableError, SettingsError

VENDORS = "vendors"
NVIDIA = "nvidia"
"""The file in a run directory that has the N of the broker's /dev/nvidiaN."""
SOCKET_VARIABLE = "VGPUMGR_SOCKET"
VENDORS_VARIABLE = "OCL_ICD_VENDORS"
LIMIT_S = 10.0
TENANT_DENIED = (
    "you may not use this tenant's accelerator; the user who runs the broker grants it with the tenant's"
    " socket_mode and socket_group, in a run directory that you can enter"
)


def check_paths(directory: Path, tenants: Iterable[str]) -> None:
    """Check that the sockets' paths are short enough. SettingsError."""
    names = [CONTROL, *(f"{tenant}.sock" for tenant in tenants)]
    longest = max(names, key=len)
    limit = SOCKET_PATH_MAX - len(longest) - 1
    size = len(os.fsencode(directory.absolute()))
    if size > limit:
        raise SettingsError(
            f"run_directory: {directory.absolute()} has {size} characters, but the limit is {limit}: the path of a"
            f" socket has at most {SOCKET_PATH_MAX}, and the longest name here is {longest}"
        )


def make_directory(directory: Path, programs: Programs, env: Mapping[str, str], *, nvidia: int | None = None) -> None:
    """Create the run directory, with the files through which programs find their accelerator. SettingsError.

    One file names our library, for OpenCL's loader. Another file holds the GPU's number `nvidia`, for containers.
    """
    vendors = directory / VENDORS
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        vendors.mkdir(mode=0o755, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SettingsError(
                f"run_directory: {directory} can be written by other users; remove it, or give another one"
            )
        (vendors / "vgpumgr.icd").write_text(f"{programs.library}\n", encoding="utf-8")
        if nvidia is None:
            (directory / NVIDIA).unlink(missing_ok=True)
        else:
            (directory / NVIDIA).write_text(f"{nvidia}\n", encoding="utf-8")
    except OSError as error:
        todo = ""
        if isinstance(error, PermissionError) and directory.name == DIRECTORY_NAME and not env.get(RUNTIME_DIRECTORY):
            todo = f"; set {RUNTIME_DIRECTORY} or run_directory"
        raise SettingsError(f"run_directory: {directory}: {_reason(error)}{todo}") from None


def become_broker(directory: Path, programs: Programs, settings: dict[str, Any]) -> NoReturn:
    """Execute the broker in place of this process. The broker inherits its configuration in a memfd."""
    file = os.memfd_create("vgpumgr-settings", 0)
    with os.fdopen(os.dup(file), "wb") as writer:
        writer.write(json.dumps(settings).encode())
    os.lseek(file, 0, os.SEEK_SET)
    os.execv(programs.broker, [str(programs.broker), "--directory", str(directory), "--settings", str(file)])


def environment(directory: Path, tenant: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that uses the tenant's accelerator."""
    return {
        **env,
        SOCKET_VARIABLE: str(directory.absolute() / f"{tenant}.sock"),
        VENDORS_VARIABLE: str(directory.absolute() / VENDORS),
    }


def native_command(launcher: Path, directory: Path, tenant: str, command: Sequence[str]) -> list[str]:
    """Return the command that starts a program which holds the tenant's GPU itself, with the fence beside it."""
    return [str(launcher), "--socket", str(directory.absolute() / f"{tenant}.sock"), "--", *command]


def check_socket(directory: Path, tenant: str) -> None:
    """Check that a program could connect to the tenant's socket. BrokerUnreachableError, BrokerRefusedError."""
    path = directory / f"{tenant}.sock"
    if len(os.fsencode(path.absolute())) > SOCKET_PATH_MAX:
        raise BrokerUnreachableError(f"{path} is too long for a socket; use a shorter run directory")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(path))
    except FileNotFoundError as error:
        if _is_served(directory / CONTROL):
            raise no_tenant(directory, tenant, (file.stem for file in directory.glob("*.sock"))) from None
        raise unreachable(path, error, denied=TENANT_DENIED) from None
    except OSError as error:
        raise unreachable(path, error, denied=TENANT_DENIED) from None


def _is_served(path: Path) -> bool:
    """Whether a broker listens. A killed broker leaves its socket behind. A denied connection counts as listening."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:
        return True
    return True


def become_program(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Execute the program in place of this process. ProgramMissingError, ProgramUnusableError."""
    try:
        os.execvpe(command[0], list(command), dict(env))
    except FileNotFoundError as error:
        raise ProgramMissingError(f"{command[0]}: {_reason(error)}; give a program") from None
    except OSError as error:
        raise ProgramUnusableError(f"{command[0]}: {_reason(error)}; give a program that you may execute") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
