# SPDX-License-Identifier: Apache-2.0
"""Tests skip a feature that a kernel lacks. On the debug kernel they fail instead, because that kernel exists for
them.
"""

import pytest

from tests.rig import kernel


@pytest.mark.parametrize(
    ("debug", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)], ids=["other", "debug"]
)
def test_only_on_the_debug_kernel_is_what_it_lacks_a_failure(
    monkeypatch: pytest.MonkeyPatch, debug: bool, outcome: type[BaseException]
) -> None:
    monkeypatch.setattr(kernel, "DEBUG", debug)
    with pytest.raises(outcome, match="no IOMMUFD"):
        kernel.lacking("IOMMUFD")
