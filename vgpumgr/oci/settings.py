# SPDX-License-Identifier: Apache-2.0
"""The settings of `vgpumgr-oci`. Engines do not pass their environment on, so settings can come from a file, too."""

import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpumgr.errors import ProgramMissingError, SettingsError

FILE = Path("etc/vgpumgr/oci.toml")
RUNTIME = "VGPUMGR_OCI_RUNTIME"
RUN_DIRECTORY = "VGPUMGR_RUN_DIRECTORY"
RUNTIMES = ("runc", "crun")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Settings:
    """`runtime`: name or path of the real runtime, "" for the first one found.

    `run_directories`: the run directories of the host's brokers.
    """

    runtime: str
    run_directories: tuple[Path, ...]


def read(env: Mapping[str, str], root: Path) -> Settings:
    """Return the settings. The environment takes precedence over the file. SettingsError."""
    found = _file(root / FILE)
    directories = found.get("run_directories", ["/run/vgpumgr-broker"])
    if RUN_DIRECTORY in env:
        directories = [env[RUN_DIRECTORY]]
    return Settings(
        runtime=env.get(RUNTIME) or found.get("runtime", ""),
        run_directories=tuple(root / Path(each).relative_to("/") for each in directories),
    )


def _file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not valid TOML: {error}; correct it") from None
    for name, value in found.items():
        if name == "runtime" and isinstance(value, str):
            continue
        if name == "run_directories" and isinstance(value, list) and value and all(map(_is_path, value)):
            continue
        known = name in ("runtime", "run_directories")
        what = "must be a text" if name == "runtime" else "must be a list of absolute paths"
        raise SettingsError(f"{path}: {name}: {what if known else 'unknown field'}")
    return found


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith("/")


def runtime(settings: Settings, env: Mapping[str, str], own: Path) -> str:
    """Return the path of the real runtime. `own`: the path of this program. ProgramMissingError, SettingsError."""
    names = (settings.runtime,) if settings.runtime else RUNTIMES
    for name in names:
        if found := shutil.which(name, path=env.get("PATH", PATH)):
            if Path(found).exists() and own.exists() and Path(found).samefile(own):
                raise SettingsError(f"runtime: {found} is vgpumgr-oci itself; name the runtime that it should start")
            return found
    raise ProgramMissingError(
        f"runtime not found: {' or '.join(names)}; install one, or name it in /{FILE} or {RUNTIME}"
    )
