# SPDX-License-Identifier: Apache-2.0
"""The API's URL and token: from options, then the environment, then the configuration file, then defaults."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vgpumgr.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:8470"
OPERATOR_TOKEN = Path("/etc/vgpumgr/operator-token")
KEYS = ("url", "token_file", "ca_file")
TOKEN_MAX_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Options:
    """The values of the command-line options."""

    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in use. `token` stays out of the repr."""

    url: str
    token: str
    ca_file: str | None

    def __repr__(self) -> str:
        return f"Settings(url={self.url!r}, ca_file={self.ca_file!r})"


def settings(options: Options, env: Mapping[str, str], *, operator_token: Path = OPERATOR_TOKEN) -> Settings:
    """Gather the settings. SettingsError; its text never contains a token."""
    for option in KEYS:
        if getattr(options, option) == "":  # probably an unset variable of a script, so use no other source
            raise SettingsError(f"--{option.replace('_', '-')} is empty; give a value, or leave the option out")
    file = _configuration(env)
    url = options.url or env.get("VGPUMGR_URL") or file.get("url") or DEFAULT_URL
    return Settings(
        url=url,
        token=_token(options, env, file, operator_token),
        ca_file=options.ca_file or env.get("VGPUMGR_CA_FILE") or file.get("ca_file"),
    )


def configuration_path(env: Mapping[str, str]) -> Path | None:
    """Return the path of the user's configuration file, which need not exist."""
    if base := env.get("XDG_CONFIG_HOME"):
        return Path(base) / "vgpumgr/config.toml"
    if home := env.get("HOME"):
        return Path(home) / ".config/vgpumgr/config.toml"
    return None


def _configuration(env: Mapping[str, str]) -> dict[str, str]:
    path = configuration_path(env)
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; make it readable or remove it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}; correct it") from None
    for key, value in found.items():
        if key not in KEYS:
            raise SettingsError(f"{path}: unknown setting {key!r}; known settings: {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise SettingsError(f"{path}: {key} must be a string in quotes")
        if not value:
            raise SettingsError(f"{path}: {key} is empty; give a value, or remove the line")
    # A relative path is relative to this file, so it means the same from every directory.
    return {key: value if key == "url" else str(path.parent / Path(value).expanduser()) for key, value in found.items()}


def _token(options: Options, env: Mapping[str, str], file: Mapping[str, str], operator_token: Path) -> str:
    if options.token_file:
        return _read_token(Path(options.token_file))
    if token := env.get("VGPUMGR_TOKEN"):
        return token.strip()
    if named := env.get("VGPUMGR_TOKEN_FILE") or file.get("token_file"):
        return _read_token(Path(named))
    try:
        return _read_token(operator_token)
    except SettingsError as error:
        why = error.__cause__
        if not isinstance(why, OSError):
            raise
        said = "does not exist" if isinstance(why, FileNotFoundError) else "is not readable for you"
        raise SettingsError(
            f"no token was given: use --token-file, VGPUMGR_TOKEN_FILE or token_file in config.toml"
            f" ({operator_token} {said})"
        ) from None


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"token file {path}: {error.strerror}; give a file that holds a token") from error
    token = content.strip()
    if not token or len(content) > TOKEN_MAX_BYTES or not token.isascii() or len(token.split()) != 1:
        raise SettingsError(f"token file {path} holds no token; it must hold exactly one, on one line")
    return token.decode("ascii")
