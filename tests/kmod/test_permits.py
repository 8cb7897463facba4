# SPDX-License-Identifier: Apache-2.0
"""With attach=permit a slice is opened once for each permit. A used or withdrawn permit does not come back."""

import time

import pytest

from tests.rig.client import client
from tests.rig.gpu import ADDRESS, Gpu
from vgpumgr.errors import InvalidFieldError, NotFoundError

PERMIT_S = 120


@pytest.fixture
def uuid(gpu: Gpu) -> str:
    """A slice that needs a permit."""
    gpu.sysfs.write_gpu(ADDRESS, "attach", "permit")
    return gpu.slice()


def test_a_permit_is_good_for_one_opening(gpu: Gpu, uuid: str) -> None:
    assert "renewal" in gpu.sysfs.read_gpu(ADDRESS, "features").split()
    gpu.sysfs.grant(uuid)
    assert client(uuid, "info").status == 0
    assert gpu.sysfs.permit_s(uuid) == 0
    assert "not permitted" in client(uuid, "info", expected=(3,)).output.lower()


def test_a_permit_that_is_renewed_begins_anew(gpu: Gpu, uuid: str) -> None:
    gpu.sysfs.grant(uuid)
    while (left_s := gpu.sysfs.permit_s(uuid)) > PERMIT_S - 3:
        time.sleep(0.1)
    gpu.sysfs.renew(uuid)
    assert gpu.sysfs.permit_s(uuid) > left_s
    assert client(uuid, "info").status == 0


def test_there_is_nothing_to_renew_without_a_permit(gpu: Gpu, uuid: str) -> None:
    def refused() -> None:
        with pytest.raises(NotFoundError):
            gpu.sysfs.renew(uuid)
        assert gpu.sysfs.permit_s(uuid) == 0

    refused()
    gpu.sysfs.grant(uuid)
    gpu.sysfs.withdraw(uuid)
    refused()
    gpu.sysfs.grant(uuid)
    assert client(uuid, "info").status == 0
    refused()
    assert "not permitted" in client(uuid, "info", expected=(3,)).output.lower()


@pytest.mark.parametrize("text", ["2", "-1", "renewed", "renew renew", "yes"])
def test_anything_else_changes_nothing(gpu: Gpu, uuid: str, text: str) -> None:
    gpu.sysfs.grant(uuid)
    with pytest.raises(InvalidFieldError):
        gpu.sysfs.write(uuid, "permit", text)
    assert gpu.sysfs.permit_s(uuid) > 0
