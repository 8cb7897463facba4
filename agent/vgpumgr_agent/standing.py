# SPDX-License-Identifier: Apache-2.0
"""What this host knows of one slice."""

from dataclasses import dataclass

from vgpumgr.wire.fleet import Arriving, DesiredSlice, Moved


@dataclass(frozen=True)
class Standing:
    """All of it is from the same moment.

    `claim`: None if this host has none for the slice. Of a claim: `fenced`: the host was fenced, so the claim was
    given up; `unproven`: its place may have been given to others; `doubt`: why no VM may start with it before a
    document is trusted, empty if one may; `lease_left_s`: how long a VM may be started with it without the API.

    Without a claim: `moved`: where the claim went; `arriving`: the claim is on its way here; `deleted`: the slice was
    deleted.
    """

    claim: DesiredSlice | None = None
    fenced: bool = False
    unproven: bool = False
    doubt: str = ""
    lease_left_s: float = 0.0
    moved: Moved | None = None
    arriving: Arriving | None = None
    deleted: bool = False

    @property
    def known(self) -> bool:
        """Whether the slice is one of ours."""
        return self.claim is not None or self.moved is not None or self.arriving is not None or self.deleted
