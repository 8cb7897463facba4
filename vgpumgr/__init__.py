# SPDX-License-Identifier: Apache-2.0
"""What every part of vgpumgr shares; imports nothing from the API service or the host agent."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`__version__`, looked up when asked for: importing the machinery costs more than most programs here."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vgpumgr")
    except PackageNotFoundError:  # a bare source tree on the path, as in the lab host
        return "0+uninstalled"
