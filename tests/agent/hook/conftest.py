# SPDX-License-Identifier: Apache-2.0
"""A host and its agent for each test of the hook."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from vgpumgr_agent.hook.server import HookServer

from tests.agent.hook.rig import FakeService, Host


@pytest.fixture
def host() -> Iterator[Host]:
    """No agent runs on this host."""
    # pytest's own directories are too long for the path of a socket
    with tempfile.TemporaryDirectory(prefix="hook-") as directory:
        host = Host(Path(directory))
        host.install()
        yield host


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def agent(host: Host, service: FakeService) -> Iterator[HookServer]:
    server = HookServer(host.socket, service, peer_uid=os.getuid())
    server.start()
    yield server
    server.close()
