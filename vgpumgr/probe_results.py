# SPDX-License-Identifier: Apache-2.0
"""Results of `host probe-gpu`, kept on the host for the agent: one file for each GPU, named by the GPU's UUID.

Root writes the files, and every user may read them. A result is valid until the GPU is probed again.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
_SUFFIX = ".json"
_BYTES_MAX = 1 << 20
_COST_US_MAX = 1_000_000


def store(directory: Path, documents: Iterable[Mapping[str, Any]]) -> list[Path]:
    """Store the documents of the measured GPUs; return their files. OSError.

    The directory is created if its parent exists. The parent is created by the agent's installation.
    """
    measured = [found for found in documents if found["refused"] is None and _UUID.fullmatch(found["gpu"]["uuid"])]
    if measured:
        directory.mkdir(mode=0o755, exist_ok=True)
    paths = []
    for found in measured:
        path = directory / f"{found['gpu']['uuid']}{_SUFFIX}"
        aside = path.with_name(f".{path.name}.new")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), 0o644)
            json.dump(found, file)
        aside.rename(path)
        paths.append(path)
    return paths


def switch_cost_us(directory: Path, uuid: str) -> int:
    """Return the cost of a switch on this GPU, rounded up; 0 if unmeasured, or not distinguishable from 0."""
    if not _UUID.fullmatch(uuid):
        return 0
    try:
        with (directory / f"{uuid}{_SUFFIX}").open("rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
        cost = found["switch_cost_us"]
        if found["conclusive"] is not True or cost is None or not cost["low"] > 0:
            return 0
        mean_us: float = cost["mean"]
        return min(math.ceil(mean_us), _COST_US_MAX)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):  # no result, or not one of ours
        return 0
