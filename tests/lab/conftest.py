# SPDX-License-Identifier: Apache-2.0
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from labhost.paths import Paths


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """On the disk of the cache: not every file system can hold the upper directory of an overlay."""
    directory = Paths.find().cache / f"role-{os.getpid()}-{tmp_path.name}"
    directory.mkdir(parents=True)
    yield directory
    shutil.rmtree(directory)
