# SPDX-License-Identifier: Apache-2.0
"""Connection plugin of ansible: a host that is a directory, entered with chroot(8)."""

import shutil
import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: lab_root
short_description: Runs modules in a directory with chroot
description: For building the lab's image; ansible-core has no such plugin of its own.
author: The vgpumgr authors
options:
  root:
    description: The directory.
    required: true
    vars:
      - name: lab_root
"""


class Connection(ConnectionBase):
    """Needs root. The caller of the playbook has mounted what the directory needs.

    A file /tmp/disconnected in the directory breaks the connection once.
    """

    transport = "lab_root"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        disconnected = self._inside("/tmp/disconnected")
        if disconnected.exists():
            disconnected.unlink()
            raise AnsibleConnectionFailure("the connection was broken")
        command = ["chroot", self.get_option("root"), "/bin/sh", "-c", cmd]
        done = subprocess.run(command, input=in_data or b"", capture_output=True)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        super().put_file(in_path, out_path)
        shutil.copyfile(in_path, self._inside(out_path))

    def fetch_file(self, in_path, out_path):
        super().fetch_file(in_path, out_path)
        shutil.copyfile(self._inside(in_path), out_path)

    def close(self):
        self._connected = False

    def _inside(self, path):
        return Path(self.get_option("root")) / path.lstrip("/")
