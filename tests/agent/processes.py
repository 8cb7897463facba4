# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.agent.processes helper|agent ROOT [API_URL [CA_FILE]]``: the real programs on a fake root."""

import logging
import os
import sys
from pathlib import Path

from vgpumgr_agent import control_plane, main, reporter
from vgpumgr_agent.config import Config
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.records import Records
from vgpumgr_agent.helper.server import Server

from tests.agent import fakebroker, fakeexecutor
from tests.agent.fakekernel import FakeControl, FakeSysfs
from vgpumgr.control.sysfs import HostPaths


def helper(root: Path) -> None:
    records = Records(root / "records")
    records.make_directory()
    operations = Operations(
        sysfs=FakeSysfs(HostPaths(root)),
        open_control=lambda: FakeControl(root),
        records=records,
        executors=fakeexecutor.processes(root),
        brokers=fakebroker.brokers(root),
    )
    Server(root / "helper.sock", operations.run, uids={os.getuid()}).serve()


def agent(root: Path, api_url: str, ca_file: str | None = None) -> None:
    # Log as much as possible, because the tests check that the log holds no secret.
    logging.basicConfig(level=logging.DEBUG)
    control_plane.PAUSE_MAX_S = reporter.PAUSE_MAX_S = 0.2
    control_plane.WAIT_S = 2
    config = Config(
        api_url=api_url,
        ca_file=ca_file,
        enroll_token_file=root / "token",
        state_dir=root / "state",
        report_interval_s=0.2,
        hook_socket=root / "hook.sock",
        helper_socket=root / "helper.sock",
    )
    main.serve(config, FakeSysfs(HostPaths(root)), peer_uid=os.getuid())


if __name__ == "__main__":
    if sys.argv[1] == "helper":
        helper(Path(sys.argv[2]))
    else:
        agent(Path(sys.argv[2]), *sys.argv[3:])
