# SPDX-License-Identifier: Apache-2.0
"""Finds the broker of a claim for processes: the agent's helper gives each claim a tenant named by the claim's UUID."""

from pathlib import Path
from uuid import UUID

from vgpumgr.errors import BrokerUnreachableError


def directory_of(claim: UUID, brokers: Path) -> Path:
    """Return the run directory of the broker that has a claim. `brokers`: see `HostPaths`. BrokerUnreachableError."""
    found = next(iter(sorted(brokers.glob(f"*/{claim}.sock"))), None)
    if found is None:
        raise BrokerUnreachableError(
            f"no broker of this host has claim {claim}; `vgpumgr describe slice {claim}` shows its host and the reason"
        )
    return found.parent
