# SPDX-License-Identifier: Apache-2.0
"""The compiled engine; see `_build.py` for what is in it."""

from typing import Any

ffi: Any
lib: Any
