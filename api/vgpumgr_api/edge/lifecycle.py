# SPDX-License-Identifier: Apache-2.0
"""Whether a process of the API goes on serving: what readiness, and each answer's Connection header, tell."""


class Lifecycle:
    """Belongs to one application. Once it stops it never serves again."""

    def __init__(self) -> None:
        self.stopping = False

    def stop(self) -> None:
        """May be called in a signal handler."""
        self.stopping = True
