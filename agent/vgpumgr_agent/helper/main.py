# SPDX-License-Identifier: Apache-2.0
"""``vgpumgr-helper`` serves the agent; ``vgpumgr-helper adopt UUID`` records a slice that somebody else made."""

import argparse
import logging
import pwd
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.notify import notify
from vgpumgr_agent.helper import broker_services
from vgpumgr_agent.helper.brokers import Brokers
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.executors import Executors
from vgpumgr_agent.helper.operations import Operations
from vgpumgr_agent.helper.processes import Processes
from vgpumgr_agent.helper.protocol import SOCKET_PATH
from vgpumgr_agent.helper.records import DIRECTORY, Records
from vgpumgr_agent.helper.server import Server
from vgpumgr_agent.helper.units import DIRECTORY as UNITS_DIRECTORY
from vgpumgr_agent.helper.units import Units
from vgpumgr_agent.refused import Refused, UnavailableError

AGENT_USER = "vgpumgr"


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 0 done, 1 refused or impossible, 2 usage."""
    parser = argparse.ArgumentParser(prog="vgpumgr-helper", description="The root part of the vgpumgr host agent.")
    parser.add_argument("--socket", type=Path, default=Path(SOCKET_PATH), help="default: %(default)s")
    parser.add_argument("--records", type=Path, default=DIRECTORY, help="records of our slices; default: %(default)s")
    parser.add_argument("--user", default=AGENT_USER, help="who may use the socket, besides root; default: %(default)s")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("serve", help="serve the agent (default)")
    adopt = commands.add_parser("adopt", help="record an existing slice as ours, so that the agent manages it")
    adopt.add_argument("uuid", metavar="UUID")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    try:
        if options.command == "adopt":
            HelperClient(options.socket).call("adopt", uuid=options.uuid.lower())
            return 0
        _serve(options.socket, options.records, options.user)
    except (Refused, UnavailableError, OSError, KeyError) as error:
        print(f"vgpumgr-helper: {_reason(error, options.user)}", file=sys.stderr)
        return 1
    return 0


def _serve(path: Path, directory: Path, user: str) -> None:
    account = pwd.getpwnam(user)
    records = Records(directory)
    records.make_directory()
    path.parent.mkdir(parents=True, exist_ok=True)
    sysfs = Sysfs()
    operations = Operations(
        sysfs=sysfs, open_control=Control, records=records, executors=_executors(), brokers=make_brokers(sysfs)
    )
    server = Server(path, operations.run, uids={0, account.pw_uid}, gid=account.pw_gid)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.close()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    notify(ready=True, status="serving the agent")
    server.serve()
    notify(stopping=True)


def _executors() -> Executors:
    """Return the way to run executors: systemd if it is running on this host (see sd_booted(3)), else processes."""
    return Units() if UNITS_DIRECTORY.is_dir() else Processes()


def make_brokers(sysfs: Sysfs) -> Brokers:
    """Return the brokers of this host. They run in the same way as executors."""
    services: broker_services.Service = (
        broker_services.Units() if UNITS_DIRECTORY.is_dir() else broker_services.Processes()
    )
    return Brokers(sysfs.paths.brokers, sysfs.paths.agent_settings, services)


def _reason(error: Exception, user: str) -> str:
    if isinstance(error, KeyError):
        return f"there is no user {user}: create it, or pass --user"
    return error.reason if isinstance(error, UnavailableError) else str(error)


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:]))
