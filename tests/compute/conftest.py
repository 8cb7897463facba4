# SPDX-License-Identifier: Apache-2.0
"""What several files of these tests share."""

from pathlib import Path

import pytest

from tests.compute import dispatch_rig


@pytest.fixture(scope="session")
def dispatch_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenCL backend with a client that a test plays."""
    return dispatch_rig.make_driver(tmp_path_factory.mktemp("dispatch"))


@pytest.fixture(scope="session")
def pocl_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, as compiling is what takes longest."""
    return tmp_path_factory.mktemp("pocl")
