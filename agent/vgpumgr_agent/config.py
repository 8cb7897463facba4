# SPDX-License-Identifier: Apache-2.0
"""Reads the agent's settings from /etc/vgpumgr/agent.toml."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from vgpumgr.control import executor_settings
from vgpumgr.control.executor_settings import HostSettings
from vgpumgr_agent.helper.protocol import SOCKET_PATH

PATH = Path("/etc/vgpumgr/agent.toml")


class ConfigError(Exception):
    """The file cannot be used. The text names the file, the setting and the remedy."""


def _for_the_collector(path: Path) -> Path:
    if not path.is_absolute() or path.suffix != ".prom":
        raise ValueError("the collector reads files whose whole path ends in .prom")
    return path


class Config(BaseModel):
    """Settings of a host.

    `report_interval_s`: the longest time between comparisons of desired and observed state. The API's heartbeat and
    systemd's watchdog follow the same interval. `counters_interval_s`: how often changing counters are reported to the
    API. `metrics_file`: the file for Prometheus' node exporter; without it no metrics are written. `executor`, `gpus`:
    see `vgpumgr.control.executor_settings`. The agent itself uses these two only to find the GPUs that are set aside
    for processes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_url: str
    ca_file: Path | None = None
    enroll_token_file: Path = Path("/etc/vgpumgr/enroll-token")
    state_dir: Path = Path("/var/lib/vgpumgr/agent")
    report_interval_s: Annotated[float, Field(ge=0.1, le=30)] = 10.0
    counters_interval_s: Annotated[float, Field(ge=0.1, le=600)] = 60.0
    metrics_file: Annotated[Path, AfterValidator(_for_the_collector)] | None = None
    hook_socket: Path = Path("/run/vgpumgr/hook.sock")
    helper_socket: Path = Path(SOCKET_PATH)
    executor: dict[str, Any] = {}
    gpus: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_executors(self) -> Self:
        self.host_settings()
        return self

    def host_settings(self) -> HostSettings:
        """Return the settings in `executor` and `gpus`. Raises ValueError."""
        return executor_settings.parse({"executor": self.executor, "gpus": self.gpus})


def load(path: Path = PATH) -> Config:
    """Return the settings. Raises ConfigError."""
    try:
        return Config.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f'{path}: {error.strerror}; write at least api_url = "https://..." there') from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"{part}: " for part in [".".join(str(part) for part in first["loc"])] if part)
        raise ConfigError(f"{path}: {where}{first['msg'].removeprefix('Value error, ')}") from error
