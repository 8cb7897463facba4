# SPDX-License-Identifier: Apache-2.0
"""How long the kernel of this lab host takes."""

import os

PATIENCE = 10 if os.environ.get("LAB_KERNEL") == "debug" else 1
"""How many times as long this kernel may take, where a test only waits so that it does not wait for ever."""
