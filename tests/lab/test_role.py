# SPDX-License-Identifier: Apache-2.0
"""The ansible roles from the view of an operator who deploys hosts. Image builds test a first run; this file tests the
rest."""

import json
import os
import re
import select
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from host_copies import PATHS, Host, changed, needs_root, run_vm, say_who_reboots, unfit_kernel
from labhost.debian import host_root
from labhost.deploy import host_layers
from labhost.errors import BuildError
from labhost.paths import Paths
from labhost.snapshot import Snapshot

import vgpumgr
from tests.api.cluster import Cluster

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]

pytestmark = needs_root
NEXT = "9.9.9"
FOLLOWING = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9999", "{last}", None, None


def upgrade() -> None:
    op.create_table("following", sa.Column("id", sa.Integer(), primary_key=True))
"""
TLS = {
    "vgpumgr_api_tls_certificate": "/etc/vgpumgr/api.pem",
    "vgpumgr_api_tls_key": "/etc/vgpumgr/api.key",
    "vgpumgr_host_api_url": "https://127.0.0.1:8470",
    "vgpumgr_host_api_ca_file": "/etc/vgpumgr/api.pem",
}
SERVE = """set -e
ip link set lo up
as() { # USER COMMAND...
    user=$1
    shift
    exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
}
ask() { # METHOD PATH [DATA]
    curl --silent --show-error --fail-with-body --cacert /etc/vgpumgr/api.pem --request "$1" \\
        --header "Authorization: Bearer $(cat /etc/vgpumgr/operator-token)" \\
        ${3:+--header 'Content-Type: application/json' --data "$3"} "https://127.0.0.1:8470$2"
}
until_true() { # COMMAND...
    tries=0
    until "$@" >/tmp/said 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { cat /tmp/said /tmp/*.log; exit 1; }
        sleep 0.5
    done
}
(as vgpumgr-api /opt/vgpumgr/bin/vgpumgr-api serve) >/tmp/api.log 2>&1 & api=$!
until_true ask GET /v1/health
"""
ANNOUNCE = (
    SERVE
    + """
ask POST /v1/hosts '{"name": "lab"}' >/tmp/host
kill $api
jq --raw-output .enroll_token /tmp/host
"""
)
ENROL = (
    SERVE
    + """
ready() {
    ask GET /v1/hosts/lab >/tmp/host
    jq --exit-status '.online and .state == "ready"' /tmp/host
}
systemd-tmpfiles --create /usr/lib/tmpfiles.d/vgpumgr.conf
install -d -o vgpumgr -g vgpumgr -m 0700 /var/lib/vgpumgr/agent
(as vgpumgr /opt/vgpumgr/bin/vgpumgr-agent) >/tmp/agent.log 2>&1 & agent=$!
until_true ready
kill $agent $api
jq --exit-status '.token == null' /var/lib/vgpumgr/agent/credentials.json
openssl verify -CAfile /var/lib/vgpumgr/api/agents.pem /var/lib/vgpumgr/agent/certificate.pem
"""
)


def test_a_second_run_changes_nothing(place: Path) -> None:
    output = Host(place).play()
    assert changed(output) == 0, re.findall(r"TASK \[.*\n(?:changed.*\n)+", output)


def test_a_change_of_settings_changes_what_it_names_and_nothing_else(place: Path) -> None:
    host = Host(place)
    output = host.play("-e", '{"vgpumgr_host_gpus": ["0000:00:10.0", "0000:3b:00.0"]}')
    assert changed(output) == 1
    assert (host.changes / "etc/vgpumgr/gpus").read_text().splitlines()[1:] == ["0000:00:10.0", "0000:3b:00.0"]


def test_udev_finds_nothing_wrong_with_the_rules(place: Path) -> None:
    said = Host(place).run("udevadm verify /etc/udev/rules.d/60-vgpumgr.rules")
    assert re.search(r"Success: +1\n +Fail: +0\n", said), said


def test_check_mode_on_a_bare_host_says_what_would_change_and_changes_nothing(place: Path) -> None:
    host = Host(place, [host_root(PATHS)])
    assert changed(host.play("--check")) > 10
    files = [path.relative_to(host.changes) for path in host.changes.rglob("*") if path.is_file()]
    assert [file for file in files if not file.is_relative_to("var/cache/apt")] == []


def test_a_gpu_that_is_no_pci_address_is_refused(place: Path) -> None:
    with pytest.raises(BuildError, match=r"nvidia0 is not a PCI address; `lspci -D`"):
        Host(place).play("--tags", "check", "-e", '{"vgpumgr_host_gpus": ["nvidia0"]}')


def test_a_kernel_without_mediated_devices_is_refused(place: Path) -> None:
    host = Host(place)
    with pytest.raises(BuildError, match=r"kernel 9\.9-cloud has no CONFIG_VFIO_MDEV"):
        host.play("--tags", "module", *unfit_kernel(host))


@pytest.mark.parametrize(
    "mokutil", [None, "/var/lib/dkms/mok.pub is not enrolled", "/var/lib/dkms/mok.pub is already enrolled"]
)
def test_secure_boot_without_a_trusted_key_is_refused(place: Path, mokutil: str | None) -> None:
    """It is also refused where the program that reports this is missing. With a trusted key the role works as usual."""
    host = Host(place)
    variable = host.changes / "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    variable.parent.mkdir(parents=True)
    variable.write_bytes(bytes([6, 0, 0, 0, 1]))
    if mokutil is not None:
        program = host.changes / "usr/bin/mokutil"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {mokutil}\n")
        program.chmod(0o755)
    arguments = ("--tags", "module", "-e", '{"vgpumgr_host_live": true, "vgpumgr_host_gpus": []}')
    if mokutil is not None and "already" in mokutil:
        assert changed(host.play(*arguments)) == 0
    else:
        with pytest.raises(BuildError, match="Secure Boot is on and does not trust the key"):
            host.play(*arguments)


def test_the_role_ends_no_vm_by_a_reboot_unless_that_is_allowed(place: Path) -> None:
    host = Host(place)
    reboots = {"vgpumgr_host_reboot_required": True, "vgpumgr_host_reboot_ok": True}
    arguments = ("--start-at-task", "Read which VMs run", "-e", json.dumps(reboots))
    say_who_reboots(host)
    run_vm(host, "web-1")
    with pytest.raises(BuildError, match=r"a reboot of lab would end the VMs web-1:"):
        host.play(*arguments)
    with pytest.raises(BuildError, match="the host reboots"):
        host.play(*arguments, "-e", "vgpumgr_host_reboot_vms=true")
    run_vm(host, None)
    with pytest.raises(BuildError, match="the host reboots"):
        host.play(*arguments)


def test_a_new_version_replaces_the_one_that_is_there(place: Path, tmp_path: Path) -> None:
    """Program, kernel module and database are updated, kept files stay, and the run after that changes nothing."""
    following = next_version(tmp_path / "checkout")
    host = Host(place)
    token = host.run("cat /etc/vgpumgr/operator-token")
    assert changed(host.play(paths=following)) > 0
    assert host.run("/opt/vgpumgr/bin/vgpumgr --version").split()[-1] == NEXT
    assert re.fullmatch(rf"vgpumgr/{NEXT}, [^,]+, x86_64: installed\n", host.run("dkms status -m vgpumgr"))
    assert "CREATE TABLE following" in host.run(
        "python3 -c 'import sqlite3; print(*sqlite3.connect(\"/var/lib/vgpumgr/api/vgpumgr.db\").iterdump())'"
    )
    assert host.run("cat /etc/vgpumgr/operator-token") == token
    assert changed(host.play(paths=following)) == 0


def next_version(checkout: Path) -> Paths:
    """A checkout of a future release, which has one more table."""
    names = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", CHECKOUT, "ls-files", "-co", "--exclude-standard", "--", "."],
        check=True, capture_output=True, text=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    Snapshot.take(CHECKOUT, names).write(checkout)
    (checkout / "build").mkdir()
    (checkout / "build/venv").symlink_to(CHECKOUT / "build/venv")
    for name in ("kmod/VERSION", "kmod/dkms.conf", "kmod/guest/dkms.conf"):
        place = checkout / name
        place.write_text(place.read_text().replace(vgpumgr.__version__, NEXT))
    versions = checkout / "migrations/versions"
    last = max(path.name for path in versions.glob("[0-9]*.py")).split("_")[0]
    (versions / "9999_following.py").write_text(FOLLOWING.format(last=last))
    return Paths(checkout=checkout, cache=PATHS.cache)


def test_the_api_keeps_its_data_in_postgresql(place: Path) -> None:
    """The first machine of the API creates tables and token; a second one on the same database creates neither."""
    with Cluster.started() as cluster, reachable(cluster) as port:
        cluster.create("vgpumgr")
        url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/vgpumgr"
        lower = host_layers(PATHS)[2:]
        arguments = ("--skip-tags", "module", "-e", f"vgpumgr_api_database={url}")
        first, second = Host(place / "first", lower), Host(place / "second", lower)
        first.play(*arguments)
        token = first.run("cat /etc/vgpumgr/operator-token")
        assert token.strip()
        assert first.run("stat -c '%U %G %a' /etc/vgpumgr/api.toml") == "root vgpumgr-api 640\n"
        with psycopg.connect(cluster.url("vgpumgr")) as database:
            assert database.execute("SELECT count(*) FROM tokens").fetchone() == (1,)
        assert changed(first.play(*arguments)) == 0
        second.play(*arguments, "-e", "vgpumgr_api_initialise=false")
        assert not (second.changes / "etc/vgpumgr/operator-token").exists()
        assert not list(place.glob("*/upper/var/lib/vgpumgr/api/*"))
        with psycopg.connect(cluster.url("vgpumgr")) as database:
            assert database.execute("SELECT count(*) FROM tokens").fetchone() == (1,)


@contextmanager
def reachable(cluster: Cluster) -> Iterator[int]:
    """Forward a port of 127.0.0.1 to the cluster's socket, which a host in a directory cannot reach."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as inner:
                inner.connect(str(cluster.directory / ".s.PGSQL.5432"))
                ends = {self.request: inner, inner: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forward) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_api_beyond_loopback_without_tls_is_refused(place: Path) -> None:
    with pytest.raises(BuildError, match="beyond loopback the API needs TLS"):
        Host(place).play("-e", "vgpumgr_api_listen_host=0.0.0.0")


def test_another_machine_of_the_api_makes_no_authority_of_its_own(place: Path) -> None:
    """Nothing is changed before the machine has the authority of the first one. If told to run without an authority,
    hosts use tokens."""
    host = Host(place)
    host.give_certificate()
    second = TLS | {"vgpumgr_api_initialise": False}
    with pytest.raises(BuildError, match=r"agents\.pem does not exist: copy it .*from the machine where"):
        host.play("-e", json.dumps(second))
    assert not (host.changes / "etc/vgpumgr/api.toml").exists()
    host.play("-e", json.dumps(second | {"vgpumgr_api_agent_ca_certificate": ""}))
    assert "agent_ca" not in (host.changes / "etc/vgpumgr/api.toml").read_text()
    host.run("cp -p /etc/vgpumgr/api.pem /var/lib/vgpumgr/api/agents.pem; touch /var/lib/vgpumgr/api/agents.key")
    host.play("-e", json.dumps(second))
    assert "agent_ca" in (host.changes / "etc/vgpumgr/api.toml").read_text()
    assert (host.changes / "var/lib/vgpumgr/api/agents.key").read_text() == ""


def test_with_tls_a_host_trades_its_one_time_token_for_a_certificate_and_is_ready(place: Path) -> None:
    """The order of docs/deploy.md: the API, then the host with its token; their programs do the rest."""
    host = Host(place)
    host.give_certificate()
    host.play("-e", json.dumps(TLS))
    assert host.run("stat -c '%U %a' /var/lib/vgpumgr/api/agents.key") == "vgpumgr-api 600\n"
    token = host.run(ANNOUNCE).strip()
    assert changed(host.play("-e", json.dumps(TLS | {"vgpumgr_host_enroll_token": token}))) == 1
    assert host.run(ENROL).splitlines()[-2:] == ["true", "/var/lib/vgpumgr/agent/certificate.pem: OK"]
    assert changed(host.play("-e", json.dumps(TLS))) == 0


def test_the_image_names_no_package_index_of_this_machine() -> None:
    deployed = host_layers(PATHS)[:-1]
    assert [layer for layer in deployed if (layer / "opt/vgpumgr/bin/vgpumgr-agent").exists()]
    for layer in deployed:
        assert not list(layer.rglob("pip.conf"))
        assert not list(layer.rglob("*.whl"))


def test_the_collection_passes_ansible_lint(tmp_path: Path) -> None:
    collection = tmp_path / "ansible_collections" / "vgpumgr"
    collection.mkdir(parents=True)
    (collection / "vgpumgr").symlink_to(CHECKOUT / "ansible")
    tools = CHECKOUT / "build" / "venv" / "bin"
    done = subprocess.run(
        [tools / "ansible-lint", "--nocolor", "--offline", "--profile", "production"],
        cwd=CHECKOUT / "ansible",
        env={**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_brings_the_deployed_host_up() -> None:
    lab = [sys.executable, str(HERE / "lab"), "run", "--systemd", "--timeout", "800", "--", "tests/lab/systemd-boot"]
    done = subprocess.run(lab, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
