# SPDX-License-Identifier: Apache-2.0
"""What is done when the API says that an operator has declared this host dead."""

from collections.abc import Iterator
from contextlib import contextmanager

from vgpumgr.wire.problem import Code
from vgpumgr_agent.api import ApiRefusedError
from vgpumgr_agent.store import Credentials, Store


@contextmanager
def heeding_fence(store: Store, credentials: Credentials) -> Iterator[None]:
    """Around a request: if it is told of a fence no VM starts any more with what the host had; running ones go on."""
    try:
        yield
    except ApiRefusedError as error:
        if error.code == Code.HOST_FENCED:
            store.fence(credentials)
        raise
