# SPDX-License-Identifier: Apache-2.0
"""The API reads what its role writes from variables, and the messages name bad settings."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_api.claims.deadline_settings import Deadlines
from vgpumgr_api.config import Config, ConfigError, load
from vgpumgr_api.overload.connection_settings import ConnectionSettings

from tests.api import playbooks

ROLE = Path(__file__).parents[2] / "ansible/roles/vgpumgr_api"
OIDC: dict[str, Any] = {
    "issuer": "https://login.example/realms/cloud",
    "audience": 'vgpu"mgr',
    "ca_file": "login-ca.pem",
    "leeway_s": 5,
    "role_claim": "https://x.example/roles",
    "algorithms": ["ES256", "EdDSA"],
    "roles": {"admin": ["a"], "tenant-admin": ["b", "c\\d"], "tenant-viewer": ["\u00e9"]},
}
ACME: dict[str, Any] = {
    "issuer": "https://acme.example",
    "audience": "v",
    "name": "acme",
    "tenants": ["acme", "lab"],
    "roles": {"tenant-admin": ["staff"]},
}
TLS = {"tls_certificate": "/etc/vgpumgr/api.pem", "tls_key": "/etc/vgpumgr/api.key"}
BOUNDS = {
    "events_kept_s": 3600,
    "events_kept": 5000,
    "token_requests_per_s": 0,
    "tenant_requests_per_s": 7,
    "failed_logins_per_s": 3,
    "tenant_requests_at_once": 5,
    "token_requests_waiting": 6,
}
CONNECTIONS = {"total": 100, "per_address": 0, "head_s": 1, "take_s": 3600}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an issuer": {"oidc": OIDC},
    "issuers": {"oidc": [OIDC | {"name": "corp"}, ACME]},
    "TLS": TLS,
    "TLS without an authority": TLS | {"agent_ca_certificate": ""},
    "an authority": {
        **TLS,
        "agent_ca_certificate": "/srv/authority.pem",
        "agent_ca_key": "/srv/authority.key",
        "agent_certificate_life_s": 3600,
    },
    "bounds": BOUNDS,
    "deadlines": {"deadlines": {"claimed_s": 7200, "host_lost_s": 120}},
    "connections": {"connections": CONNECTIONS, "deadlines": {"claimed_s": 7200}},
}
"""Variables of the role, without their common prefix."""


@dataclass(frozen=True)
class Role:
    """The settings that the API reads from the role's files in `directory`, for each case."""

    directory: Path
    configs: dict[str, Config]


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Role:
    directory = tmp_path_factory.mktemp("role")
    cases = {case: {f"vgpumgr_api_{name}": value for name, value in given.items()} for case, given in CASES.items()}
    texts = playbooks.written(ROLE / "templates/api.toml.j2", ROLE / "defaults/main.yml", cases, directory)
    configs = {}
    for case, text in texts.items():
        (directory / "api.toml").write_text(text)
        configs[case] = load(directory / "api.toml")
    return Role(directory, configs)


def test_without_variables_there_are_only_our_own_tokens(role: Role) -> None:
    assert role.configs["nothing"].oidc == ()


def test_the_issuer_is_read_as_it_was_given(role: Role) -> None:
    [found] = role.configs["an issuer"].oidc
    said = found.model_dump(exclude_defaults=True, by_alias=True, mode="json")
    assert said == OIDC | {"ca_file": str(role.directory / "login-ca.pem")}


def test_several_issuers_are_read_as_they_were_given(role: Role) -> None:
    found = role.configs["issuers"].oidc
    said = [each.model_dump(exclude_defaults=True, by_alias=True, mode="json") for each in found]
    assert said == [OIDC | {"name": "corp", "ca_file": str(role.directory / "login-ca.pem")}, ACME]


ISSUER = 'issuer = "https://{}.example"\naudience = "v"\nname = "{}"\n{}[oidc.roles]\n{} = ["x"]\n'


@pytest.mark.parametrize(
    ("issuers", "named"),
    [
        ([("a", "one", "", "viewer"), ("a", "two", "", "viewer")], "oidc.issuer"),
        ([("a", "one", "", "viewer"), ("b", "one", "", "viewer")], "oidc.name"),
        ([("a", "", "", "viewer"), ("b", "two", "", "viewer")], "oidc.name"),
        ([("a", "one/two", "", "viewer")], "oidc.name"),
        ([("a", "one", 'tenants = ["acme"]\n', "operator")], "oidc: "),
        ([("a", "one", 'tenants = "acme"\n', "tenant-admin")], "oidc.tenants"),
    ],
)
def test_issuers_that_would_be_taken_for_each_other_are_named(
    tmp_path: Path, issuers: list[tuple[str, ...]], named: str
) -> None:
    (tmp_path / "api.toml").write_text("".join("[[oidc]]\n" + ISSUER.format(*each) for each in issuers))
    with pytest.raises(ConfigError, match=f"api.toml: {named}"):
        load(tmp_path / "api.toml")


def test_with_tls_there_is_an_authority_for_agents_unless_it_is_taken_out(role: Role) -> None:
    found = role.configs["TLS"]
    assert found.agent_ca_certificate == Path("/var/lib/vgpumgr/api/agents.pem")
    assert found.agent_ca_key == Path("/var/lib/vgpumgr/api/agents.key")
    assert role.configs["TLS without an authority"].agent_ca_certificate is None
    assert role.configs["nothing"].agent_ca_certificate is None


def test_the_authority_for_agents_is_read_as_it_was_given(role: Role) -> None:
    found = role.configs["an authority"]
    assert str(found.agent_ca_certificate) == "/srv/authority.pem"
    assert str(found.agent_ca_key) == "/srv/authority.key"
    assert found.agent_certificate_life_s == 3600


def test_bounds_are_read_as_they_were_given(role: Role) -> None:
    found = role.configs["bounds"]
    assert {name: getattr(found, name) for name in BOUNDS} == BOUNDS
    assert role.configs["nothing"] == Config()


@pytest.mark.parametrize(
    "wrong",
    [
        "events_kept_s = 599",
        "events_kept_s = 31622401",
        "events_kept = 999",
        "events_kept = 1000000001",
        "events_kept = true",
        "token_requests_per_s = -1",
        "tenant_requests_per_s = 1000001",
        "tenant_requests_per_s = 1.5",
        "failed_logins_per_s = -1",
        "tenant_requests_at_once = 17",
        "token_requests_waiting = 10001",
    ],
)
def test_bounds_out_of_range_are_named(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "api.toml").write_text(wrong + "\n")
    with pytest.raises(ConfigError, match=f"api.toml: {wrong.partition(' ')[0]}: not"):
        load(tmp_path / "api.toml")


def test_deadlines_are_read_as_they_were_given(role: Role) -> None:
    assert role.configs["deadlines"].deadlines == Deadlines(claimed_s=7200, host_lost_s=120)


def test_connections_are_read_as_they_were_given(role: Role) -> None:
    found = role.configs["connections"]
    assert found.connections == ConnectionSettings(**CONNECTIONS)
    assert found.deadlines == Deadlines(claimed_s=7200)


@pytest.mark.parametrize(
    "line",
    [
        "total = 15",
        "total = 60001",
        "per_address = -1",
        "bodies_bytes = 16777215",
        "handshake_s = 0",
        "head_s = 3601",
        "body_s = 1.5",
        "idle_s = true",
        'take_s = "60"',
        "stall_s = 30",
    ],
)
def test_bad_settings_of_connections_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "api.toml").write_text(f"[connections]\n{line}\n")
    with pytest.raises(ConfigError, match=f"api.toml: connections.{line.partition(' ')[0]}: "):
        load(tmp_path / "api.toml")


DOCUMENTED = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) to (\d+) \|", re.M)


def test_the_bounds_of_connections_are_those_that_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    text = page.partition("## Connections and slow clients")[2].partition("\n## ")[0]
    schema = ConnectionSettings.model_json_schema()["properties"]
    assert {name: (int(usual), int(least), int(most)) for name, usual, least, most in DOCUMENTED.findall(text)} == {
        name: (each["default"], each["minimum"], each["maximum"]) for name, each in schema.items()
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("claimed_s = 119", "deadlines.claimed_s"),
        ("releasing_s = 100000000", "deadlines.releasing_s"),
        ('prepared_s = "600"', "deadlines.prepared_s"),
        ("attached_s = 600", "deadlines.attached_s"),
        ("lease_s = 600", "deadlines.lease_s"),
    ],
)
def test_bad_deadlines_are_named(tmp_path: Path, line: str, named: str) -> None:
    (tmp_path / "api.toml").write_text(f"[deadlines]\n{line}\n")
    with pytest.raises(ConfigError, match=f"api.toml: {named}"):
        load(tmp_path / "api.toml")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"issuer": None}, "oidc.issuer"),
        ({"issuer": "http://login.example"}, "oidc.issuer"),
        ({"jwks_url": "http://keys.example/"}, "oidc.jwks_url"),
        ({"audience": ""}, "oidc.audience"),
        ({"algorithms": ["HS256"]}, "oidc.algorithms"),
        ({"algorithms": ["none"]}, "oidc.algorithms"),
        ({"algorithms": []}, "oidc.algorithms"),
        ({"leeway_s": 301}, "oidc.leeway_s"),
        ({"leeway_s": "5"}, "oidc.leeway_s"),
        ({"roles": None}, "oidc.roles"),
        ({"roles": {"owner": ["a"]}}, "oidc.roles.owner"),
        ({"roles": {"admin": "a"}}, "oidc.roles.admin"),
        ({"roles": {"admin": [""]}}, "oidc.roles.admin"),
        ({"colour": "red"}, "oidc.colour"),
    ],
)
def test_bad_settings_of_the_issuer_are_named(tmp_path: Path, wrong: dict[str, Any], named: str) -> None:
    table = {name: value for name, value in (OIDC | {"roles": {"admin": ["a"]}} | wrong).items() if value is not None}
    roles = table.pop("roles", None)
    lines = ["[oidc]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    lines += ["[oidc.roles]", *(f"{name} = {json.dumps(value)}" for name, value in roles.items())] if roles else []
    (tmp_path / "api.toml").write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match=f"api.toml: {named}"):
        load(tmp_path / "api.toml")
