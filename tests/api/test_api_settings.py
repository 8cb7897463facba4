# SPDX-License-Identifier: Apache-2.0
"""What the API's role writes from its variables is what the API reads, and bad settings are named."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vgpumgr_api.config import Config, ConfigError, load
from vgpumgr_api.connection_settings import ConnectionSettings
from vgpumgr_api.deadline_settings import Deadlines

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


def written(tmp_path: Path, **variables: Any) -> Config:
    task = {"src": str(ROLE / "templates/api.toml.j2"), "dest": str(tmp_path / "api.toml")}
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "vars_files": [str(ROLE / "defaults/main.yml")],
        "tasks": [{"ansible.builtin.template": task, "vars": variables}],
    }
    (tmp_path / "play.json").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=localhost,", "--connection=local"]
    done = subprocess.run([*command, str(tmp_path / "play.json")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return load(tmp_path / "api.toml")


def test_without_variables_there_are_only_our_own_tokens(tmp_path: Path) -> None:
    assert written(tmp_path).oidc == ()


def test_the_issuer_is_read_as_it_was_given(tmp_path: Path) -> None:
    [found] = written(tmp_path, vgpumgr_api_oidc=OIDC).oidc
    said = found.model_dump(exclude_defaults=True, by_alias=True, mode="json")
    assert said == OIDC | {"ca_file": str(tmp_path / "login-ca.pem")}


def test_several_issuers_are_read_as_they_were_given(tmp_path: Path) -> None:
    other = {"issuer": "https://acme.example", "audience": "v", "name": "acme", "tenants": ["acme", "lab"]}
    other["roles"] = {"tenant-admin": ["staff"]}
    given = [OIDC | {"name": "corp"}, other]
    found = written(tmp_path, vgpumgr_api_oidc=given).oidc
    said = [each.model_dump(exclude_defaults=True, by_alias=True, mode="json") for each in found]
    assert said == [OIDC | {"name": "corp", "ca_file": str(tmp_path / "login-ca.pem")}, other]


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


def test_with_tls_there_is_an_authority_for_agents_unless_it_is_taken_out(tmp_path: Path) -> None:
    tls = {"vgpumgr_api_tls_certificate": "/etc/vgpumgr/api.pem", "vgpumgr_api_tls_key": "/etc/vgpumgr/api.key"}
    found = written(tmp_path, **tls)
    assert found.agent_ca_certificate == Path("/var/lib/vgpumgr/api/agents.pem")
    assert found.agent_ca_key == Path("/var/lib/vgpumgr/api/agents.key")
    assert written(tmp_path, **tls, vgpumgr_api_agent_ca_certificate="").agent_ca_certificate is None
    assert written(tmp_path).agent_ca_certificate is None


def test_the_authority_for_agents_is_read_as_it_was_given(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        vgpumgr_api_tls_certificate="/etc/vgpumgr/api.pem",
        vgpumgr_api_tls_key="/etc/vgpumgr/api.key",
        vgpumgr_api_agent_ca_certificate="/srv/authority.pem",
        vgpumgr_api_agent_ca_key="/srv/authority.key",
        vgpumgr_api_agent_certificate_life_s=3600,
    )
    assert str(found.agent_ca_certificate) == "/srv/authority.pem"
    assert str(found.agent_ca_key) == "/srv/authority.key"
    assert found.agent_certificate_life_s == 3600


def test_bounds_are_read_as_they_were_given(tmp_path: Path) -> None:
    given = {"events_kept_s": 3600, "events_kept": 5000, "token_requests_per_s": 0, "tenant_requests_per_s": 7}
    given |= {"failed_logins_per_s": 3, "tenant_requests_at_once": 5}
    found = written(tmp_path, **{f"vgpumgr_api_{name}": value for name, value in given.items()})
    assert {name: getattr(found, name) for name in given} == given
    assert written(tmp_path) == Config()


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
    ],
)
def test_bounds_out_of_range_are_named(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "api.toml").write_text(wrong + "\n")
    with pytest.raises(ConfigError, match=f"api.toml: {wrong.partition(' ')[0]}: not"):
        load(tmp_path / "api.toml")


def test_deadlines_are_read_as_they_were_given(tmp_path: Path) -> None:
    found = written(tmp_path, vgpumgr_api_deadlines={"claimed_s": 7200, "host_lost_s": 120}).deadlines
    assert found == Deadlines(claimed_s=7200, host_lost_s=120)


def test_connections_are_read_as_they_were_given(tmp_path: Path) -> None:
    given = {"total": 100, "per_address": 0, "head_s": 1, "take_s": 3600}
    found = written(tmp_path, vgpumgr_api_connections=given, vgpumgr_api_deadlines={"claimed_s": 7200})
    assert found.connections == ConnectionSettings(**given)
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
