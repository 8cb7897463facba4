# SPDX-License-Identifier: Apache-2.0
"""/etc/vgpumgr/agent.toml."""

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vgpumgr_agent.helper.protocol import SOCKET_PATH

PATH = Path("/etc/vgpumgr/agent.toml")


class ConfigError(Exception):
    """The file cannot be used. The text names it, the setting and what to do."""


class Config(BaseModel):
    """Settings of a host.

    `report_interval_s`: also how often everything is compared when nothing happens, and systemd's watchdog hears of us.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_url: str
    ca_file: Path | None = None
    enroll_token_file: Path = Path("/etc/vgpumgr/enroll-token")
    state_dir: Path = Path("/var/lib/vgpumgr/agent")
    report_interval_s: Annotated[float, Field(ge=0.1, le=30)] = 10.0
    hook_socket: Path = Path("/run/vgpumgr/hook.sock")
    helper_socket: Path = Path(SOCKET_PATH)


def load(path: Path = PATH) -> Config:
    """Return the settings. ConfigError."""
    try:
        return Config.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}; write at least api_url = "https://..." there') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from error
