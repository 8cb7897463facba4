# SPDX-License-Identifier: Apache-2.0
"""Start a broker, and start programs on a tenant's accelerator. Both take the place of this process."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vgpumgr.broker.control import CONTROL, no_tenant, unreachable
from vgpumgr.broker.places import Programs
from vgpumgr.errors import ArgumentError, BrokerUnreachableError, SettingsError

VENDORS = "vendors"
SOCKET_VARIABLE = "VGPUMGR_SOCKET"
VENDORS_VARIABLE = "OCL_ICD_VENDORS"
SOCKET_PATH_MAX = 107
"""sun_path of sockaddr_un, without its final zero."""
LIMIT_S = 10.0
TENANT_DENIED = (
    "you may not use this tenant's accelerator; the user who runs the broker sets who may: socket_mode and"
    " socket_group of the tenant, in a run directory that you can enter"
)


def make_directory(directory: Path, programs: Programs) -> None:
    """Make the run directory, and in it what lets OpenCL's loader find our library. SettingsError."""
    vendors = directory / VENDORS
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        vendors.mkdir(mode=0o755, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise SettingsError(
                f"run_directory: {directory} is not yours alone to write; remove it, or name another one"
            )
        (vendors / "vgpumgr.icd").write_text(f"{programs.library}\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"run_directory: {directory}: {(error.strerror or str(error)).lower()}") from None


def become_broker(directory: Path, programs: Programs, settings: dict[str, Any]) -> NoReturn:
    """Turn this process into a broker. The configuration goes along as a file that has no name."""
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


def check_socket(directory: Path, tenant: str) -> None:
    """Find out whether a program could connect. BrokerUnreachableError, BrokerRefusedError."""
    path = directory / f"{tenant}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise BrokerUnreachableError(f"{path} is too long for a socket; use a shorter run directory")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(str(path))
    except FileNotFoundError as error:
        if (directory / CONTROL).exists():
            raise no_tenant(directory, tenant, (file.stem for file in directory.glob("*.sock"))) from None
        raise unreachable(path, error, denied=TENANT_DENIED) from None
    except OSError as error:
        raise unreachable(path, error, denied=TENANT_DENIED) from None


def become_program(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Turn this process into the program. ArgumentError if there is no such program."""
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        raise ArgumentError(f"{command[0]}: {(error.strerror or str(error)).lower()}; give a program") from None
