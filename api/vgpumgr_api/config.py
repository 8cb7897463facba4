# SPDX-License-Identifier: Apache-2.0
"""The settings of ``vgpumgr-api``, read from one TOML file."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from vgpumgr.wire.fleet import LEASE_S
from vgpumgr_api.auth.agent_ca import LIFE_S
from vgpumgr_api.auth.oidc_settings import OidcSettings
from vgpumgr_api.claims.deadline_settings import Deadlines
from vgpumgr_api.overload.connection_settings import ConnectionSettings
from vgpumgr_api.overload.turns import SHARED

DEFAULT_PATH = Path("/etc/vgpumgr/api.toml")
REQUESTS_PER_S_MAX = 1_000_000
DEFAULT_DATABASE = "sqlite:////var/lib/vgpumgr/api/vgpumgr.db"


class ConfigError(Exception):
    """The file cannot be used. The message is one line that names the setting."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings. `listen_host` beyond loopback needs `tls_certificate` and `tls_key` (PEM files).

    `database`: a SQLAlchemy URL. `stop_delay_s`: how long a process that is stopping still takes requests, so that load
    balancers that poll its readiness stop sending them. `log_format`: ``text`` or ``json``. `slow_statement_ms`:
    statements that take longer are logged; 0: none.

    `metrics_host`: where metrics are served, like `listen_host`; None: nowhere. `metrics_token_file` contains the token
    that Prometheus must show. `otlp_endpoint`: where traces are sent; None: nowhere.

    `oidc`: the issuers that authenticate people; without one, only our own tokens are accepted. `agent_ca_certificate`
    and `agent_ca_key` (PEM files): the authority that issues certificates to agents. It needs TLS. Without an
    authority, agents have tokens. `events_kept_s` and `events_kept`: the maximum age and number of events kept.
    `usage_kept_days`: how long the ledger is kept, 0: for ever.

    These limits apply to this replica; 0 means no limit. `*_requests_per_s`: the request rate of one token and of one
    tenant. `tenant_requests_at_once`: how many requests of one tenant run at once. `token_requests_waiting`: how many
    requests of one token may wait for their turn. `failed_logins_per_s`: the rate of invalid credentials from one
    address.

    `deadlines`: when the API reports that something makes no progress. `connections`: how many connections there may
    be, and how long a client may take.
    """

    database: str = DEFAULT_DATABASE
    listen_host: str = "127.0.0.1"
    listen_port: int = 8470
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    lease_s: int = LEASE_S
    oidc: tuple[OidcSettings, ...] = ()
    agent_ca_certificate: Path | None = None
    agent_ca_key: Path | None = None
    agent_certificate_life_s: int = LIFE_S
    events_kept_s: int = 7 * 86400
    events_kept: int = 10_000_000
    usage_kept_days: int = 0
    token_requests_per_s: int = 500
    tenant_requests_per_s: int = 1000
    tenant_requests_at_once: int = 8
    token_requests_waiting: int = 100
    failed_logins_per_s: int = 10
    deadlines: Deadlines = field(default_factory=Deadlines)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    stop_delay_s: int = 0
    log_format: str = "text"
    slow_statement_ms: int = 1000
    metrics_host: str | None = None
    metrics_port: int = 8471
    metrics_token_file: Path | None = None
    otlp_endpoint: str | None = None


def load(path: Path) -> Config:
    """Reads `path`. An unknown member is an error, because it may be misspelt."""
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; name another with --config") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return _parsed(path, table)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "database": str,
    "listen_host": str,
    "listen_port": int,
    "tls_certificate": str,
    "tls_key": str,
    "lease_s": int,
    "oidc": (dict, list),
    "agent_ca_certificate": str,
    "agent_ca_key": str,
    "agent_certificate_life_s": int,
    "events_kept_s": int,
    "events_kept": int,
    "usage_kept_days": int,
    "token_requests_per_s": int,
    "tenant_requests_per_s": int,
    "tenant_requests_at_once": int,
    "token_requests_waiting": int,
    "failed_logins_per_s": int,
    "deadlines": dict,
    "connections": dict,
    "stop_delay_s": int,
    "log_format": str,
    "slow_statement_ms": int,
    "metrics_host": str,
    "metrics_port": int,
    "metrics_token_file": str,
    "otlp_endpoint": str,
}
_FILES = ("tls_certificate", "tls_key", "agent_ca_certificate", "agent_ca_key", "metrics_token_file")
_RANGES = {
    "listen_port": (0, 65535),
    "metrics_port": (0, 65535),
    "agent_certificate_life_s": (600, 30 * 86400),
    "stop_delay_s": (0, 300),
    "tenant_requests_at_once": (0, SHARED),
    "token_requests_waiting": (0, 10_000),
    "slow_statement_ms": (0, 3_600_000),
}


def _parsed(path: Path, table: dict[str, object]) -> Config:
    for name, value in table.items():
        if name not in _TYPES:
            raise ConfigError(f"{path}: {name}: no such setting; there are {', '.join(_TYPES)}")
        types = _TYPES[name]
        if not isinstance(value, types) or isinstance(value, bool):
            kind = f"of type {types.__name__}" if isinstance(types, type) and types is not dict else "a table"
            raise ConfigError(f"{path}: {name}: not {kind}")
    values: dict[str, object] = dict(table)
    for name in _FILES:
        if name in values:
            values[name] = path.parent / str(values[name])
    if "oidc" in table:
        values["oidc"] = _issuers(path, table["oidc"])
    if "deadlines" in table:
        values["deadlines"] = _deadlines(path, table["deadlines"])
    if "connections" in table:
        values["connections"] = _connections(path, table["connections"])
    config = Config(**values)  # type: ignore[arg-type]
    for name, (least, most) in _RANGES.items():
        if not least <= getattr(config, name) <= most:
            raise ConfigError(f"{path}: {name}: not between {least} and {most}")
    if config.lease_s < 60:
        raise ConfigError(f"{path}: lease_s: less than a minute")
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ConfigError(f"{path}: tls_certificate and tls_key: name both or neither")
    if (config.agent_ca_certificate is None) != (config.agent_ca_key is None):
        raise ConfigError(f"{path}: agent_ca_certificate and agent_ca_key: name both or neither")
    if config.agent_ca_certificate is not None and config.tls_certificate is None:
        raise ConfigError(
            f"{path}: agent_ca_certificate: agents show certificates in TLS; name tls_certificate, tls_key"
        )
    for name in ("token_requests_per_s", "tenant_requests_per_s", "failed_logins_per_s"):
        if not 0 <= getattr(config, name) <= REQUESTS_PER_S_MAX:
            raise ConfigError(f"{path}: {name}: not between 0 (no limit) and {REQUESTS_PER_S_MAX}")
    if not 600 <= config.events_kept_s <= 366 * 86400:
        raise ConfigError(f"{path}: events_kept_s: not between 600 and {366 * 86400}")
    if config.usage_kept_days and not 62 <= config.usage_kept_days <= 36_500:
        raise ConfigError(f"{path}: usage_kept_days: neither 0 nor between 62 and 36500")
    if not 1000 <= config.events_kept <= 1_000_000_000:
        raise ConfigError(f"{path}: events_kept: not between 1000 and 1000000000")
    if config.log_format not in ("text", "json"):
        raise ConfigError(f"{path}: log_format: not text or json")
    if config.otlp_endpoint is not None and not config.otlp_endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"{path}: otlp_endpoint: not a URL such as http://127.0.0.1:4318/v1/traces")
    try:
        url = make_url(config.database)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{path}: database: not a URL such as {DEFAULT_DATABASE}") from None
    backend = url.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise ConfigError(f"{path}: database: {backend} is not supported; use sqlite or postgresql")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        raise ConfigError(f"{path}: database: names no file; use a URL such as {DEFAULT_DATABASE}")
    return config


def _deadlines(path: Path, table: object) -> Deadlines:
    try:
        settings = Deadlines.model_validate(table)
    except ValidationError as error:
        raise _unusable(path, "deadlines", error) from None
    if "lease_s" in settings.model_fields_set:
        raise ConfigError(f"{path}: deadlines.lease_s: no such setting; name lease_s outside of that table")
    return settings


def _connections(path: Path, table: object) -> ConnectionSettings:
    try:
        return ConnectionSettings.model_validate(table)
    except ValidationError as error:
        raise _unusable(path, "connections", error) from None


def _unusable(path: Path, table: str, error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in (table, *first["loc"]))
    return ConfigError(f"{path}: {where}: {first['msg']}")


def _issuers(path: Path, tables: object) -> tuple[OidcSettings, ...]:
    found = [_oidc(path, each) for each in (tables if isinstance(tables, list) else [tables])]
    for name in ("issuer", "name"):
        said = [getattr(each, name) for each in found]
        if len(found) > 1 and (len(set(said)) < len(said) or "" in said):
            raise ConfigError(f"{path}: oidc.{name}: with several issuers each needs one of its own")
    return tuple(found)


def _oidc(path: Path, table: object) -> OidcSettings:
    try:
        settings = OidcSettings.model_validate(table)
    except ValidationError as error:
        raise _unusable(path, "oidc", error) from None
    if settings.ca_file is None:
        return settings
    return settings.model_copy(update={"ca_file": path.parent / settings.ca_file})
