# SPDX-License-Identifier: Apache-2.0
"""What every part of vgpumgr shares; imports nothing from the API service or the host agent."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("vgpumgr")
except PackageNotFoundError:  # a bare source tree on the path, as in the lab host
    __version__ = "0+uninstalled"

__all__ = ["__version__"]
