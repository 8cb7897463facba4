# SPDX-License-Identifier: Apache-2.0
"""How the agent reacts when the API reports that an operator has declared this host dead."""

from collections.abc import Iterator
from contextlib import contextmanager

from vgpumgr.wire.problem import Code
from vgpumgr_agent.api import ApiRefusedError
from vgpumgr_agent.store import Credentials, Store


@contextmanager
def heeding_fence(store: Store, credentials: Credentials) -> Iterator[None]:
    """Wrap a request to the API. If the API reports a fence, no VM can start with the host's claims.

    Running VMs continue.
    """
    try:
        yield
    except ApiRefusedError as error:
        if error.code == Code.HOST_FENCED:
            store.fence(credentials)
        raise
