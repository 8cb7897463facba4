# SPDX-License-Identifier: Apache-2.0
"""Where URL, token and CA file come from, and the messages about bad ones."""

from pathlib import Path
from typing import Any

import pytest

from vgpumgr.cli.settings import Options, Settings, settings
from vgpumgr.errors import SettingsError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config/vgpumgr").mkdir(parents=True)
    for name in ("option", "environment", "file", "operator"):
        (tmp_path / name).write_text(f"token-of-{name}\n")
    return tmp_path


def configure(home: Path, text: str) -> None:
    (home / ".config/vgpumgr/config.toml").write_text(text)


def found(home: Path, *, operator: str = "operator", options: Options | None = None, **env: Any) -> Settings:
    return settings(options or Options(), {"HOME": str(home)} | env, operator_token=home / operator)


def test_without_anything_the_local_api_and_the_operators_token_are_meant(home: Path) -> None:
    assert (found(home).url, found(home).token) == ("http://127.0.0.1:8470", "token-of-operator")


def test_options_win_over_environment_over_file(home: Path) -> None:
    configure(home, 'url = "https://file"\ntoken_file = "../../file"\nca_file = "ca.pem"\n')
    env: dict[str, Any] = {
        "VGPUMGR_URL": "https://environment",
        "VGPUMGR_TOKEN_FILE": str(home / "environment"),
        "VGPUMGR_CA_FILE": "/environment.pem",
    }
    options = Options(url="https://option", token_file=str(home / "option"), ca_file="/option.pem")
    from_file, from_env, from_options = found(home), found(home, **env), found(home, options=options, **env)
    assert (from_file.url, from_file.token) == ("https://file", "token-of-file")
    assert from_file.ca_file == str(home / ".config/vgpumgr/ca.pem")
    assert (from_env.url, from_env.token, from_env.ca_file) == (
        "https://environment",
        "token-of-environment",
        "/environment.pem",
    )
    assert (from_options.url, from_options.token, from_options.ca_file) == (
        "https://option",
        "token-of-option",
        "/option.pem",
    )


def test_a_token_in_the_environment_wins_over_a_file_named_there(home: Path) -> None:
    assert found(home, VGPUMGR_TOKEN="direct\n", VGPUMGR_TOKEN_FILE=str(home / "environment")).token == "direct"


def test_xdg_config_home_is_where_the_file_is(home: Path) -> None:
    (home / "xdg/vgpumgr").mkdir(parents=True)
    (home / "xdg/vgpumgr/config.toml").write_text('url = "https://xdg"\n')
    assert found(home, XDG_CONFIG_HOME=str(home / "xdg")).url == "https://xdg"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("url = ", "is not valid TOML"),
        ("\x00", "is not valid TOML"),
        ("uri = 'https://a'", "unknown setting 'uri'; known settings: url, token_file, ca_file"),
        ("url = 3", "url must be a string"),
        ("[url]\na = 1", "url must be a string"),
        ("url = ''", "url is empty"),
        ("token_file = ''", "token_file is empty"),
    ],
)
def test_a_configuration_that_is_wrong_is_said(home: Path, text: str, words: str) -> None:
    configure(home, text)
    with pytest.raises(SettingsError, match=words):
        found(home)


@pytest.mark.parametrize("option", ["url", "token_file", "ca_file"])
def test_an_option_without_a_value_does_not_mean_the_default(home: Path, option: str) -> None:
    """Otherwise a script with an unset variable would use another API or another identity."""
    with pytest.raises(SettingsError, match=f"--{option.replace('_', '-')} is empty"):
        found(home, options=Options(**{option: ""}), VGPUMGR_TOKEN="direct")


def test_a_configuration_that_is_a_directory_is_said(home: Path) -> None:
    (home / ".config/vgpumgr/config.toml").mkdir()
    with pytest.raises(SettingsError, match="Is a directory"):
        found(home)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"a\nb\n", b"\xff\xfe", b"x" * 5000])
def test_a_token_file_without_a_token_is_said_and_not_quoted(home: Path, content: bytes) -> None:
    (home / "option").write_bytes(content)
    with pytest.raises(SettingsError, match=r"holds no token; it must hold exactly one") as caught:
        found(home, options=Options(token_file=str(home / "option")))
    assert "words" not in str(caught.value)


def test_no_token_anywhere_says_where_one_may_be(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"use --token-file, VGPUMGR_TOKEN_FILE or token_file in config\.toml"):
        found(home, operator="missing")


def test_an_operators_token_that_is_not_for_everybody_is_not_called_missing(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing does not exist\)$"):
        found(home, operator="missing")
    (home / "unreadable").mkdir()
    with pytest.raises(SettingsError, match=r"unreadable is not readable for you\)$"):
        found(home, operator="unreadable")


def test_a_token_file_that_is_missing_is_said(home: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory"):
        found(home, VGPUMGR_TOKEN_FILE=str(home / "missing"))


def test_the_token_is_not_in_the_repr(home: Path) -> None:
    assert "token-of" not in repr(found(home))
