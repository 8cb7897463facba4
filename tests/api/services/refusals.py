# SPDX-License-Identifier: Apache-2.0
"""Helpers to state which refusal a test expects."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from vgpumgr_api.errors import Refusal

from vgpumgr.wire.problem import Code


@dataclass
class Caught:
    """The refusal that came, once there is one."""

    refusal: Refusal | None = None

    @property
    def reasons(self) -> dict[str, int | None]:
        assert self.refusal is not None
        return {reason.code: reason.count for reason in self.refusal.reasons}


@contextlib.contextmanager
def refused(code: Code) -> Iterator[Caught]:
    """Passes if the block is refused with `code` and a one-line message."""
    caught = Caught()
    with pytest.raises(Refusal) as raised:
        yield caught
    caught.refusal = raised.value
    assert raised.value.code is code, raised.value
    assert raised.value.detail
    assert "\n" not in raised.value.detail
