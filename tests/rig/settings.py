# SPDX-License-Identifier: Apache-2.0
"""All settings of the lab host's accelerator, and a check that a refused request changed none of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import pytest

from tests.rig.gpu import ADDRESS
from vgpumgr.control.netlink import Control
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import RefusedError

_GPU = attrgetter(
    "attach", "engine", "max_chunk_us", "memory_total_bytes", "memory_reserved_bytes", "slices", "tenants",
    "policy", "places", "reserve_limit_permille", "generation",
)  # fmt: skip
_TENANT = attrgetter(
    "name", "configured", "generation", "weight", "timeslice_us", "cap_us", "cap_period_us", "burst_us", "mode",
    "band", "reserve_us", "reserve_period_us", "hold_max_us", "inversion_permille", "inversion_burst_us",
)  # fmt: skip
_SLICE = attrgetter("uuid", "tenant", "scheduled", "weight", "cap_us", "cap_period_us", "burst_us")


def settings(control: Control, sysfs: Sysfs) -> Any:
    """All settings, and the existing objects."""
    return (
        _GPU(control.gpu(ADDRESS)),
        [_TENANT(tenant) for tenant in control.tenants()],
        [(_SLICE(found), sysfs.permit_s(found.uuid) > 0) for found in control.slices()],
    )


@contextmanager
def unchanged(control: Control, sysfs: Sysfs) -> Iterator[None]:
    before = settings(control, sysfs)
    yield
    assert settings(control, sysfs) == before


def refusal(act: Callable[[], object]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        act()
    return caught.value
