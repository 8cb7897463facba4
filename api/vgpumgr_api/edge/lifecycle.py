# SPDX-License-Identifier: Apache-2.0
"""Whether this API process is stopping. The readiness check and the Connection header of answers report it."""


class Lifecycle:
    """Belongs to one application. Once it is stopping, it never serves again."""

    def __init__(self) -> None:
        self.stopping = False

    def stop(self) -> None:
        """Marks the process as stopping. May be called in a signal handler."""
        self.stopping = True
