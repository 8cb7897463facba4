# SPDX-License-Identifier: Apache-2.0
"""A cache of the actors that credentials belonged to at their last lookup.

A request counts towards that actor's limit before the credential is looked up again. Routes that confirm the credential
in their own transaction also take the actor from here. This cache grants no access: a route that takes the actor from
here acts and answers only if the database still has the credential. Only the refusal of an actor that asks too often
needs no such check. See `edge.strict.ConfirmedRoute`.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from vgpumgr_api.actors import Actor

LIFE_S = 60.0
CREDENTIALS_MAX = 50_000


class Remembered:
    """Belongs to the event loop of one server. `clock` counts seconds from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._actors: OrderedDict[str, tuple[Actor, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._actors)

    def find(self, credential: str) -> Actor | None:
        """Returns the actor that the last lookup of the credential found, None if that was more than `LIFE_S` ago."""
        found = self._actors.get(credential)
        if found is None:
            return None
        actor, until = found
        if self._clock() >= until:
            del self._actors[credential]
            return None
        return actor

    def keep(self, credential: str, actor: Actor) -> None:
        """Stores an actor. If there are too many, the one looked up longest ago is forgotten."""
        self._actors[credential] = (actor, self._clock() + LIFE_S)
        self._actors.move_to_end(credential)
        if len(self._actors) > CREDENTIALS_MAX:
            self._actors.popitem(last=False)

    def forget(self, credential: str) -> None:
        self._actors.pop(credential, None)
