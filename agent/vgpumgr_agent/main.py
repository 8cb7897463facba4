# SPDX-License-Identifier: Apache-2.0
"""``vgpumgr-agent``: the host agent, run by the user vgpumgr."""

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from vgpumgr.control.sysfs import Sysfs
from vgpumgr_agent import config as configuration
from vgpumgr_agent.api import ApiAwayError, HttpApi
from vgpumgr_agent.backends import nvml
from vgpumgr_agent.backends.kmod import KmodBackend
from vgpumgr_agent.config import Config, ConfigError
from vgpumgr_agent.documents import Clock
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.hook.server import HookServer
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.service import Agent, AgentFailedError
from vgpumgr_agent.store import StateError, Store


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 0 stopped, 1 cannot run, 2 usage."""
    parser = argparse.ArgumentParser(prog="vgpumgr-agent", description="The vgpumgr host agent.")
    parser.add_argument("--config", type=Path, default=configuration.PATH, help="default: %(default)s")
    parser.add_argument("--verbose", action="store_true", help="log more")
    options = parser.parse_args(arguments)
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(levelname)s %(message)s")
    logging.getLogger("httpcore2").setLevel(logging.WARNING)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        serve(configuration.load(options.config), Sysfs())
    except (ConfigError, StateError, ApiAwayError, AgentFailedError, OSError) as error:
        print(f"vgpumgr-agent: {error}", file=sys.stderr)
        return 1
    return 0


def serve(config: Config, sysfs: Sysfs, *, peer_uid: int = 0) -> None:
    """Run until SIGTERM or SIGINT. `peer_uid`: the user that the hook's socket answers.

    Raises ConfigError, StateError, ApiAwayError, AgentFailedError, OSError.
    """
    with ExitStack() as stack:
        store = Store(config.state_dir, Clock(sysfs))
        stack.callback(store.close)
        meter = Meter(config.state_dir / "meter.db")
        stack.callback(meter.close)
        agent = Agent(
            config=config,
            store=store,
            meter=meter,
            backend=KmodBackend(HelperClient(config.helper_socket)),
            sysfs=sysfs,
            api=HttpApi(config.api_url, str(config.ca_file) if config.ca_file else None),
            others=nvml.discover,
        )
        _stop_on_signal(agent)
        server = HookServer(config.hook_socket, agent.hooks, peer_uid=peer_uid)
        server.start()
        stack.callback(server.close)
        agent.run()


def _stop_on_signal(agent: Agent) -> None:
    """Wait for signals in a separate thread, because a handler could interrupt code that holds a lock `stop` needs."""
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        signal.sigwait(signals)
        agent.stop()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:]))
