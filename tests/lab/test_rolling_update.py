# SPDX-License-Identifier: Apache-2.0
"""The playbook `rolling_update`, beside a running API and agents: the state it leaves hosts in, and whose decision
wins."""

import json
import re
from pathlib import Path

import pytest
from host_copies import INVENTORY, PATHS, Host, changed, needs_root, release, run_vm, say_who_reboots, unfit_kernel
from labhost.errors import BuildError

pytestmark = needs_root
# Starts an API. With ENROLLED the API knows two hosts, and AGENTS makes them online. The last line is for ansible.
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
# The pattern does not match the shell that contains its text.
WHILE_IT_WAITS = """
(
    until_true hosts_are '.state == "draining"'
    until_true pgrep -f 'operation wai[t]'
    {do}
) &
"""
# Replaces the command with which the playbook queries the API: it runs that command, except at one call chosen by the
# test.
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
# Used beside the lab's inventory: another host, in the same directory, that is updated later.
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


class UpdatedHost(Host):
    """A host that is updated while API and agents run."""

    def update(self, *arguments: str, before: str = "", again: bool = False) -> str:
        """Roll an update out while API and agents run; return its output and then the hosts' states.

        `again`: API and hosts continue in the state they were left in.
        """
        sources, wheel = release(PATHS)
        at_work = AT_WORK + ("" if again else ENROLLED) + AGENTS
        return self.layer.play(
            sources,
            wheel=wheel,
            arguments=arguments,
            playbook="rolling_update",
            script=BETWEEN,
            words=[at_work + before, STATES],
        )


def test_an_update_empties_a_host_and_lets_it_take_claims_again_if_it_did(place: Path) -> None:
    host = UpdatedHost(place)
    said = host.update()
    assert changed(said) == 2, "it is up to date: drained and put back"
    out = ["host.draining", "host.labelled", "host.cordoned"]
    assert said.splitlines()[-6:] == ["host.enrolled", *out, "host.ready", "host.labelled"]
    assert "lab is ready" in said


def test_an_update_puts_no_host_back_that_took_no_claims(place: Path) -> None:
    said = UpdatedHost(place).update(before="vgpumgr host cordon lab >/dev/null\n")
    assert said.splitlines()[-3:] == ["host.cordoned", "host.draining", "host.cordoned"]


def test_an_update_stops_at_the_first_host_that_fails(place: Path) -> None:
    """The failed host takes no claims any more, and the next host is not touched."""
    host = UpdatedHost(place)
    with pytest.raises(BuildError, match=r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is ready"):
        host.update(*two_hosts(place), *unfit_kernel(host))


def test_an_update_drains_all_hosts_of_a_batch_at_once(place: Path) -> None:
    """This holds even if ansible works on one host at a time, and a connection breaks while it waits."""
    host = UpdatedHost(place)
    drained = r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is cordoned"  # otherwise it fails before the drain
    with pytest.raises(BuildError, match=drained):
        host.update(
            *two_hosts(place), "--forks", "1", *unfit_kernel(host),
            "-e", '{"vgpumgr_update_serial": 2, "vgpumgr_update_drain_s": 120}',
            before=SLICES + WHILE_IT_WAITS.format(do="touch /tmp/disconnected\n    " + FREE_ALL),
        )  # fmt: skip


def test_an_update_that_runs_again_puts_back_what_the_one_before_left(place: Path) -> None:
    """One update is interrupted, then one fails; a host that an operator has cordoned since stays cordoned."""
    host = UpdatedHost(place)
    hosts = [*two_hosts(place), "--forks", "1", "-e", '{"vgpumgr_update_serial": 2}']
    with pytest.raises(BuildError, match=r"lab is draining\nsecond is draining"):
        host.update(*hosts, before=SLICES + WHILE_IT_WAITS.format(do=INTERRUPT))
    with pytest.raises(BuildError, match=r"no CONFIG_VFIO_MDEV(?s:.*)lab is cordoned\nsecond is cordoned"):
        host.update(*hosts, *unfit_kernel(host), before=WHILE_IT_WAITS.format(do=FREE_ALL), again=True)
    cordon = "vgpumgr host uncordon lab >/dev/null\nvgpumgr host cordon lab >/dev/null\n"
    said = host.update(*hosts, before=cordon, again=True)
    assert "lab has the label cordoned-by-update, and somebody has changed it since" in said
    assert "lab is cordoned\nsecond is ready" in said


def test_an_update_that_stops_at_the_drain_is_told_from_somebody_who_drains_just_then(place: Path) -> None:
    """The next update puts back the host that this one had begun to drain, and no other."""
    host = UpdatedHost(place)
    hosts = [*two_hosts(place), "--forks", "1", "-e", '{"vgpumgr_update_serial": 2}']
    stop = """case $3 in
        lab) vgpumgr host drain lab >/dev/null ;;
        second) vgpumgr "$@" >/dev/null ;;
        esac
        exit 1"""
    with pytest.raises(BuildError, match=r"lab is cordoned\nsecond is cordoned"):
        host.update(*hosts, *ASK, before=ASKS.format(call='"host drain"', do=stop))
    assert "lab is cordoned\nsecond is ready" in host.update(*hosts, again=True)


def test_an_update_puts_no_host_back_whose_drain_somebody_cancelled(place: Path) -> None:
    """The next update does not put it back either, and says so."""
    host = UpdatedHost(place)
    cancel = ASKS.format(call='"operation wait"', do='vgpumgr operation cancel "$3" >/dev/null')
    with pytest.raises(BuildError, match=r"somebody cancelled it(?s:.*)lab is cordoned"):
        host.update(*ASK, before=SLICES + cancel)
    said = host.update(before=FREE_ALL, again=True)
    assert "has cancelled its drain" in said
    assert "lab is cordoned" in said


def test_an_update_overrides_nobody_who_decides_while_it_is_under_way(place: Path) -> None:
    """Somebody removes one host's label, and puts another host in maintenance."""
    decide = """vgpumgr "$@"
        case $3 in
        lab) vgpumgr set host lab --unlabel cordoned-by-update >/dev/null ;;
        second) vgpumgr host maintenance second >/dev/null ;;
        esac
        exit"""
    said = UpdatedHost(place).update(
        *two_hosts(place), "--forks", "1", *ASK, before=ASKS.format(call='"host drain"', do=decide)
    )
    assert "of lab meanwhile: it stays cordoned" in said
    assert "of second meanwhile: it stays maintenance" in said
    assert "lab is cordoned\nsecond is maintenance" in said


def test_an_update_begins_to_wait_for_an_api_that_is_away(place: Path) -> None:
    away = '[ -e /tmp/asked ] || { touch /tmp/asked; set -- --url http://127.0.0.1:9 "$@"; }'
    free = f"(until_true [ -e /tmp/asked ]; {FREE_ALL}) &\n"
    said = UpdatedHost(place).update(*ASK, before=SLICES + ASKS.format(call='"operation wait"', do=away) + free)
    assert "lab is ready" in said


def test_an_update_of_a_host_with_vms_can_be_tried_in_check_mode(place: Path) -> None:
    """In check mode the update and the role assume that the host is empty when it reboots."""
    host = UpdatedHost(place)
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


def test_an_update_ends_no_vm_by_a_reboot_unless_that_is_allowed(place: Path) -> None:
    """This covers a VM whose slice the database does not know, and a VM without a slice."""
    host = UpdatedHost(place)
    reboots = {"vgpumgr_update_reboot": True, "vgpumgr_host_live": True}
    arguments = ("--start-at-task", "Read the host's state from the API before a reboot", "-e", json.dumps(reboots))
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
    """Arguments that update two hosts one after the other."""
    inventory = place / "second.yml"
    inventory.write_text(SECOND)
    return ["-i", str(INVENTORY), "-i", str(inventory)]
