# SPDX-License-Identifier: Apache-2.0
"""What this host knows of one slice."""

from dataclasses import dataclass

from vgpumgr.wire.fleet import Arriving, DesiredSlice, Moved


@dataclass(frozen=True)
class Standing:
    """Facts about one slice, all from the same moment.

    `claim`: this host's claim for the slice, or None.

    With a claim: `fenced`: the host was fenced, so the claim was given up; `unproven`: the claim's place may have been
    given to others; `doubt`: why no VM may start with the claim before a document is trusted, or empty if VMs may
    start; `lease_left_s`: how long VMs may still be started with the claim without the API.

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
