# SPDX-License-Identifier: Apache-2.0
"""A second libvirt on a lab host, with its own host name and identity: libvirt and QEMU see two hosts.

It shares kernel, network, devices and hooks with the first one. Its daemon and its VMs end with it.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import libvirt

DIRECTORY = Path("/run/second-libvirt")
SOCKET = DIRECTORY / "libvirt-sock"
URI = f"qemu+unix:///system?socket={SOCKET}"
START_S = 300
END_S = 60

# It has its own host name and its own copy of all of libvirt's directories; its VMs are in no cgroup.
_START = f"""
set -eu
hostname second
rm -rf {DIRECTORY}/hooks
mkdir -p /etc/libvirt/hooks
cp -a /etc/libvirt/hooks {DIRECTORY}/hooks
for directory in /etc/libvirt /run/libvirt /var/cache/libvirt /var/lib/libvirt /var/log/libvirt; do
    mkdir -p $directory
    mount -t tmpfs -o mode=755 second $directory
done
cp -a {DIRECTORY}/hooks /etc/libvirt/hooks
cat >/etc/libvirt/libvirtd.conf <<'END'
host_uuid = "5ec0d000-0000-4000-8000-000000000001"
unix_sock_dir = "{DIRECTORY}"
auth_unix_rw = "none"
END
cat >/etc/libvirt/qemu.conf <<'END'
stdio_handler = "file"
security_driver = "none"
cgroup_controllers = []
namespaces = []
user = "root"
group = "root"
END
exec libvirtd --pid-file {DIRECTORY}/pid
"""


def _connect(daemon: subprocess.Popen[bytes]) -> libvirt.virConnect:
    deadline = time.monotonic() + START_S
    while True:
        with suppress(libvirt.libvirtError):
            return libvirt.open(URI)
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"the second libvirt does not answer: {(DIRECTORY / 'log').read_text()[-2000:]}")
        time.sleep(0.2)


@contextmanager
def second_libvirt() -> Iterator[libvirt.virConnect]:
    """A connection to it; the first libvirt runs already."""
    DIRECTORY.mkdir(exist_ok=True)
    command = ["unshare", "--mount", "--uts", "sh", "-c", _START]
    with (DIRECTORY / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as daemon:
        try:
            connection = _connect(daemon)
            try:
                yield connection
            finally:
                for domain in connection.listAllDomains():
                    with suppress(libvirt.libvirtError):
                        domain.destroy()
                connection.close()
        finally:
            daemon.terminate()
            try:
                daemon.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
