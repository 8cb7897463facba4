# SPDX-License-Identifier: Apache-2.0
"""The ansible roles as who deploys hosts meets them. Image builds prove a first run; here is the rest."""

import json
import os
import re
import select
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg
import pytest
from labhost.debian import host_root
from labhost.deploy import SOURCES, Layer, host_layers, product_wheel
from labhost.errors import BuildError
from labhost.paths import Paths
from labhost.snapshot import Snapshot

import vgpumgr
from tests.api.cluster import Cluster
from tests.api.http.tls import make_certificate

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mmdebstrap") is None, reason="needs root and mmdebstrap"
)
PATHS = Paths.find()
INVENTORY = HERE / "deploy" / "inventory.yml"
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
# Begins an API; with ENROLLED it knows two hosts, and AGENTS makes them be online. The last line is for ansible.
AT_WORK = """set -e
ip link set lo up
as() { # USER COMMAND...
    user=$1
    shift
    exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
}
hosts_are() { # CONDITION
    vgpumgr get hosts -o json | jq --exit-status "all($1)"
}
until_true() { # COMMAND...
    tries=0
    until "$@" >/tmp/said 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || { cat /tmp/said /tmp/*.log; exit 1; }
        sleep 0.5
    done
}
in_database() { # STATEMENTS
    python3 -c 'import sqlite3, sys
with sqlite3.connect("/var/lib/vgpumgr/api/vgpumgr.db", timeout=60) as database:
    database.executescript(sys.argv[1])' "$1"
}
(as vgpumgr-api /opt/vgpumgr/bin/vgpumgr-api serve) >/tmp/api.log 2>&1 &
until_true vgpumgr get hosts
"""
ENROLLED = """
vgpumgr create host lab --token-file /tmp/token >/dev/null
vgpumgr create host second --token-file /tmp/second >/dev/null
install -d -o vgpumgr -g vgpumgr -m 0700 /var/lib/vgpumgr/agent /var/lib/vgpumgr/second
install -o vgpumgr -g vgpumgr -m 0600 /tmp/token /etc/vgpumgr/enroll-token
install -o vgpumgr -g vgpumgr -m 0600 /tmp/second /etc/vgpumgr/second-token
cat /etc/vgpumgr/agent.toml - >/etc/vgpumgr/second.toml <<END
enroll_token_file = "/etc/vgpumgr/second-token"
state_dir = "/var/lib/vgpumgr/second"
hook_socket = "/run/vgpumgr/second.sock"
END
"""
AGENTS = """
systemd-tmpfiles --create /usr/lib/tmpfiles.d/vgpumgr.conf
(as vgpumgr /opt/vgpumgr/bin/vgpumgr-agent) >/tmp/agent.log 2>&1 &
(as vgpumgr /opt/vgpumgr/bin/vgpumgr-agent --config /etc/vgpumgr/second.toml) >/tmp/second.log 2>&1 &
until_true hosts_are .online
# There is no module here that could be looked at: as if it had been, and had no slices.
in_database "UPDATE host_reports SET unknown_slices = 0"
"""
# A slice on each host.
SLICES = """
vgpumgr create tenant blue >/dev/null
vgpumgr create profile quarter --share-permille 250 --memory 64M --mode strict >/dev/null
in_database "
    INSERT INTO gpus (id, host_id, address, engine, backend, mem_bytes, timeslice_min_us, max_chunk_us, present,
            share_used, mem_used)
        SELECT lower(hex(randomblob(16))), id, '0000:00:10.0', 'soft', 'kmod', 1073741824, 100, 1000, 1, 250, 67108864
        FROM hosts;
    INSERT INTO slices (id, tenant_id, profile_id, gpu_id, share_permille, mem_bytes, mode, mdev_type, type_mem_bytes,
            state, generation, created_at)
        SELECT lower(hex(randomblob(16))), tenants.id, profiles.id, gpus.id, 250, 67108864, 'strict', 'vgpumgr-64M',
            67108864, 'claimed', 1, tenants.created_at
        FROM gpus, tenants, profiles;"
"""
# The pattern does not find the shell whose text it is in.
WHILE_IT_WAITS = """
(
    until_true hosts_are '.state == "draining"'
    until_true pgrep -f 'operation wai[t]'
    {do}
) &
"""
# In place of the command that the playbook asks the API with: that one, but for what a test does at one of its calls.
ASKS = """
cat >/tmp/asks <<'END'
#!/bin/sh -e
PATH=/opt/vgpumgr/bin:$PATH
case "$1 $2" in
    {call}) {do} ;;
esac
exec vgpumgr "$@"
END
chmod +x /tmp/asks
"""
ASK = ("-e", '{"vgpumgr_update_vgpumgr": ["/tmp/asks"]}')
FREE_ALL = "in_database 'DELETE FROM slices'"
INTERRUPT = "pkill -INT -f '^[^ ]*/python[^ ]* [^ ]*/ansible-playbook'"
# Beside the lab's inventory: another host, in the same directory, whose turn comes later.
SECOND = """all:
  children:
    vgpumgr_hosts:
      hosts:
        second:
"""
STATES = """vgpumgr get hosts -o json | jq --raw-output '.[] | .name + " is " + .state'
vgpumgr get events -o json | jq --raw-output '.[] | select(.object == "lab" and (.kind | startswith("host."))) | .kind'
"""
# $1: before the playbook, $2: after it, both in the root; then the playbook
BETWEEN = """mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
export root
exec unshare --net --pid --fork --kill-child --mount-proc="$root/proc" sh -c '
    before=$1 after=$2 status=0
    shift 2
    chroot "$root" sh -c "$before" || exit
    "$@" || status=$?
    chroot "$root" sh -c "$after" || exit
    exit $status
' lab "$@"
"""
# Its own network, because an API may listen on this machine; no process outlives the command.
IN_ROOT = """mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
exec unshare --net --pid --fork --kill-child --mount-proc="$root/proc" chroot "$root" sh -c "$1"
"""


class Host:
    """A copy of the lab host to run the playbook on. `lower`: what of it is there, uppermost layer first."""

    def __init__(self, directory: Path, lower: Sequence[Path] = ()) -> None:
        self.changes = directory / "upper"
        self._directory = directory
        self._layer = Layer(PATHS, directory, lower=lower or host_layers(PATHS))

    def play(self, *arguments: str, paths: Paths = PATHS) -> str:
        """Deploy what the checkout of `paths` has."""
        sources, wheel = release(paths)
        return self._layer.play(sources, wheel=wheel, arguments=arguments)

    def update(self, *arguments: str, before: str = "", again: bool = False) -> str:
        """Roll an update out while API and agents are at work; return what it said, and then the hosts' states.

        `again`: API and hosts go on as they were left.
        """
        sources, wheel = release(PATHS)
        at_work = AT_WORK + ("" if again else ENROLLED) + AGENTS
        return self._layer.play(
            sources,
            wheel=wheel,
            arguments=arguments,
            playbook="rolling_update",
            script=BETWEEN,
            words=[at_work + before, STATES],
        )

    def run(self, command: str) -> str:
        """Run a shell command on it; return what it said."""
        log = self._directory / "command.log"
        self._layer.run(IN_ROOT, [command], log=log)
        return log.read_text()

    def give_certificate(self) -> None:
        """Place a certificate for the API, as docs/deploy.md tells the operator to."""
        place = self.changes / "etc/vgpumgr"
        place.mkdir(parents=True, exist_ok=True)
        make_certificate(place, name="api.pem", key="api.key")
        self.run("chgrp vgpumgr-api /etc/vgpumgr/api.key && chmod 640 /etc/vgpumgr/api.key")


@cache
def release(paths: Paths) -> tuple[Snapshot, Path]:
    """The checkout as it is when it is first asked for: somebody may be at work in it."""
    return Snapshot.take(paths.checkout, SOURCES), product_wheel(paths)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """On the disk of the cache: the upper directory of an overlay may not lie on every file system."""
    directory = PATHS.cache / f"role-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(parents=True)
    yield directory
    shutil.rmtree(directory)


def changed(output: str) -> int:
    match = re.search(r"changed=(\d+) .*failed=0", output)
    assert match, output
    return int(match[1])


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
    with pytest.raises(BuildError, match=r"nvidia0 is no PCI address; `lspci -D`"):
        Host(place).play("--tags", "check", "-e", '{"vgpumgr_host_gpus": ["nvidia0"]}')


def test_a_kernel_without_mediated_devices_is_refused(place: Path) -> None:
    host = Host(place)
    with pytest.raises(BuildError, match=r"kernel 9\.9-cloud has no CONFIG_VFIO_MDEV"):
        host.play("--tags", "module", *unfit_kernel(host))


@pytest.mark.parametrize(
    "mokutil", [None, "/var/lib/dkms/mok.pub is not enrolled", "/var/lib/dkms/mok.pub is already enrolled"]
)
def test_secure_boot_without_a_trusted_key_is_refused(place: Path, mokutil: str | None) -> None:
    """Nor where the program that knows is missing; with a trusted key nothing is different."""
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
    arguments = ("--start-at-task", "Look which VMs run", "-e", json.dumps(reboots))
    say_who_reboots(host)
    run_vm(host, "web-1")
    with pytest.raises(BuildError, match=r"a reboot of lab would end the VMs web-1:"):
        host.play(*arguments)
    with pytest.raises(BuildError, match="the host reboots"):
        host.play(*arguments, "-e", "vgpumgr_host_reboot_vms=true")
    run_vm(host, None)
    with pytest.raises(BuildError, match="the host reboots"):
        host.play(*arguments)


def say_who_reboots(host: Host) -> None:
    """Let a reboot fail with a message: what is here cannot, nor can ansible wait until it has."""
    program = host.changes / "usr/sbin/shutdown"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho the host reboots >&2\nexit 1\n")
    program.chmod(0o755)


def run_vm(host: Host, name: str | None) -> None:
    """Have one VM run, or none, in libvirt's own driver for tests, in place of QEMU's."""
    place = host.changes / "etc/libvirt"
    place.mkdir(parents=True, exist_ok=True)
    (place / "libvirt.conf").write_text('uri_default = "test:///etc/libvirt/node.xml"\n')
    domain = f"<domain type='test'><name>{name}</name><memory>1024</memory><os><type>hvm</type></os></domain>"
    (place / "node.xml").write_text(f"<node>{domain if name else ''}</node>\n")


def test_a_new_version_replaces_the_one_that_is_there(place: Path, tmp_path: Path) -> None:
    """Program, kernel module and database; what was kept is kept, and the run after changes nothing."""
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
    """A checkout of a release to come, which has one more table."""
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


def test_a_rolling_update_empties_a_host_and_lets_it_take_claims_again_if_it_did(place: Path) -> None:
    host = Host(place)
    said = host.update()
    assert changed(said) == 3, "it is up to date: marked, drained and put back"
    out = ["host.cordoned", "host.labelled", "host.draining", "host.cordoned"]
    assert said.splitlines()[-7:] == ["host.enrolled", *out, "host.ready", "host.labelled"]
    assert "lab is ready" in said


def test_a_rolling_update_puts_no_host_back_that_took_no_claims(place: Path) -> None:
    said = Host(place).update(before="vgpumgr host cordon lab >/dev/null\n")
    assert said.splitlines()[-3:] == ["host.cordoned", "host.draining", "host.cordoned"]


def test_a_rolling_update_stops_at_the_first_host_that_fails(place: Path) -> None:
    """That one takes no claims any more, and the next is not touched."""
    host = Host(place)
    with pytest.raises(BuildError, match=r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is ready"):
        host.update(*two_hosts(place), *unfit_kernel(host))


def test_a_rolling_update_drains_all_hosts_of_a_batch_at_once(place: Path) -> None:
    """Even if ansible works at one after the other, and a connection breaks while it waits."""
    host = Host(place)
    drained = r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is cordoned"  # else it fails before that
    with pytest.raises(BuildError, match=drained):
        host.update(
            *two_hosts(place), "--forks", "1", *unfit_kernel(host),
            "-e", '{"vgpumgr_update_serial": 2, "vgpumgr_update_drain_s": 120}',
            before=SLICES + WHILE_IT_WAITS.format(do="touch /tmp/disconnected\n    " + FREE_ALL),
        )  # fmt: skip


def test_a_rolling_update_that_runs_again_puts_back_what_the_one_before_left(place: Path) -> None:
    """First one is interrupted, then one fails; what an operator has cordoned since stays so."""
    host = Host(place)
    hosts = [*two_hosts(place), "--forks", "1", "-e", '{"vgpumgr_update_serial": 2}']
    with pytest.raises(BuildError, match=r"lab is draining\nsecond is draining"):
        host.update(*hosts, before=SLICES + WHILE_IT_WAITS.format(do=INTERRUPT))
    with pytest.raises(BuildError, match=r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is cordoned"):
        host.update(*hosts, *unfit_kernel(host), before=WHILE_IT_WAITS.format(do=FREE_ALL), again=True)
    cordon = "vgpumgr host uncordon lab >/dev/null\nvgpumgr host cordon lab >/dev/null\n"
    said = host.update(*hosts, before=cordon, again=True)
    assert "lab has the label cordoned-by-update, and somebody has changed it since" in said
    assert "lab is cordoned\nsecond is ready" in said


def test_a_rolling_update_that_stops_before_the_drain_leaves_what_the_next_one_puts_back(place: Path) -> None:
    """Then, too, the host takes no claims: else nobody could tell whose drain comes next."""
    host = Host(place)
    with pytest.raises(BuildError, match="lab is cordoned"):
        host.update(*ASK, before=ASKS.format(call='"host drain"', do="exit 1"))
    assert "lab is ready" in host.update(again=True)


def test_a_rolling_update_puts_no_host_back_whose_drain_somebody_cancelled(place: Path) -> None:
    """Nor does the one after it, which says so."""
    host = Host(place)
    cancel = ASKS.format(call='"operation wait"', do='vgpumgr operation cancel "$3" >/dev/null')
    with pytest.raises(BuildError, match=r"somebody cancelled it(?s:.*)lab is cordoned"):
        host.update(*ASK, before=SLICES + cancel)
    said = host.update(before=FREE_ALL, again=True)
    assert "has cancelled its drain" in said
    assert "lab is cordoned" in said


def test_a_rolling_update_overrides_nobody_who_decides_while_it_is_under_way(place: Path) -> None:
    """One host has its label taken away, another is put in maintenance."""
    decide = """vgpumgr "$@"
        case $3 in
        lab) vgpumgr set host lab --unlabel cordoned-by-update >/dev/null ;;
        second) vgpumgr host maintenance second >/dev/null ;;
        esac
        exit"""
    said = Host(place).update(
        *two_hosts(place), "--forks", "1", *ASK, before=ASKS.format(call='"host drain"', do=decide)
    )
    assert "of lab meanwhile: it stays cordoned" in said
    assert "of second meanwhile: it stays maintenance" in said
    assert "lab is cordoned\nsecond is maintenance" in said


def test_a_rolling_update_begins_to_wait_for_an_api_that_is_away(place: Path) -> None:
    away = '[ -e /tmp/asked ] || { touch /tmp/asked; set -- --url http://127.0.0.1:9 "$@"; }'
    free = f"(until_true [ -e /tmp/asked ]; {FREE_ALL}) &\n"
    said = Host(place).update(*ASK, before=SLICES + ASKS.format(call='"operation wait"', do=away) + free)
    assert "lab is ready" in said


def test_a_rolling_update_of_a_host_with_vms_can_be_tried_in_check_mode(place: Path) -> None:
    """It would be empty when it reboots, by the update and by the role."""
    host = Host(place)
    run_vm(host, "web-1")
    reboots = {
        "vgpumgr_update_reboots": True,
        "vgpumgr_host_reboot_required": True,
        "vgpumgr_host_reboot_ok": True,
    }
    unknown = 'in_database "UPDATE host_reports SET unknown_slices = 1"\n'
    said = host.update("--check", "-e", json.dumps(reboots), before=unknown)
    assert re.search(r"TASK \[Reboot the empty host\] \*+\nchanged: \[lab\]", said)
    assert said.splitlines()[-4:] == ["lab is ready", "second is ready", "host.created", "host.enrolled"]


def test_a_rolling_update_ends_no_vm_by_a_reboot_unless_that_is_allowed(place: Path) -> None:
    """Neither one of a slice that the database does not know nor one that has none."""
    host = Host(place)
    reboots = {"vgpumgr_update_reboot": True, "vgpumgr_host_live": True}
    arguments = ("--start-at-task", "Look what the API has of the host that shall reboot", "-e", json.dumps(reboots))
    unknown = 'in_database "UPDATE host_reports SET unknown_slices = 1"\n'
    say_who_reboots(host)
    run_vm(host, None)
    with pytest.raises(BuildError, match="lab has slices that the database does not know"):
        host.update(*arguments, before=unknown)
    with pytest.raises(BuildError, match="the host reboots"):
        host.update(*arguments, again=True)
    run_vm(host, "web-1")
    with pytest.raises(BuildError, match=r"a reboot of lab would end the VMs web-1:"):
        host.update(*arguments, again=True)
    with pytest.raises(BuildError, match="the host reboots"):
        host.update(*arguments, "-e", "vgpumgr_host_reboot_vms=true", before=unknown, again=True)


def two_hosts(place: Path) -> list[str]:
    """Arguments for two hosts, one after the other."""
    inventory = place / "second.yml"
    inventory.write_text(SECOND)
    return ["-i", str(INVENTORY), "-i", str(inventory)]


def unfit_kernel(host: Host) -> list[str]:
    """Arguments with which the role fails, when the host is empty."""
    build = host.changes / "usr/lib/modules/9.9-cloud/build"
    build.mkdir(parents=True)
    (build / ".config").write_text("CONFIG_VFIO=m\n# CONFIG_VFIO_MDEV is not set\n")
    return ["-e", "vgpumgr_host_kernel=9.9-cloud"]


def test_the_api_keeps_its_data_in_postgresql(place: Path) -> None:
    """Its first machine makes tables and token; a second on the same database makes neither."""
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
    """Forward a port of 127.0.0.1 to the cluster's socket, which a host in a directory does not see."""

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
    with pytest.raises(BuildError, match="beyond loopback the API speaks TLS only"):
        Host(place).play("-e", "vgpumgr_api_listen_host=0.0.0.0")


def test_another_machine_of_the_api_makes_no_authority_of_its_own(place: Path) -> None:
    """Nor is anything changed before it has that of the first; without one hosts have tokens, if that is said."""
    host = Host(place)
    host.give_certificate()
    second = TLS | {"vgpumgr_api_initialise": False}
    with pytest.raises(BuildError, match=r"agents\.pem is not there: copy it .*from the machine where"):
        host.play("-e", json.dumps(second))
    assert not (host.changes / "etc/vgpumgr/api.toml").exists()
    host.play("-e", json.dumps(second | {"vgpumgr_api_agent_ca_certificate": ""}))
    assert "agent_ca" not in (host.changes / "etc/vgpumgr/api.toml").read_text()
    host.run("cp -p /etc/vgpumgr/api.pem /var/lib/vgpumgr/api/agents.pem; touch /var/lib/vgpumgr/api/agents.key")
    host.play("-e", json.dumps(second))
    assert "agent_ca" in (host.changes / "etc/vgpumgr/api.toml").read_text()
    assert (host.changes / "var/lib/vgpumgr/api/agents.key").read_text() == ""


def test_with_tls_a_host_trades_its_one_time_token_for_a_certificate_and_is_ready(place: Path) -> None:
    """As docs/deploy.md has it: the API, then the host with its token, and then their programs do the rest."""
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
