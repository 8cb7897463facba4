# SPDX-License-Identifier: Apache-2.0
"""The kernel of this lab host: how long it takes, and what it has said."""

import os
import subprocess

PATIENCE = 10 if os.environ.get("LAB_KERNEL") == "debug" else 1
"""How many times as long this kernel may take, where a test only waits so that it does not wait for ever."""


def kernel_log() -> str:
    """Since it booted, unless that is longer than it keeps."""
    return subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
