# SPDX-License-Identifier: Apache-2.0
"""Code that the API and the host agent share, and standalone tools. Nothing here imports the API or the agent.

Shared: `wire` (what travels between them), `errors`, `client` (the API as Python calls), `control` (the kernel module),
`broker` (a running broker and its configuration), `policy`, `sched` (the scheduler's core) and the single modules
beside this one. Tools: `cli` (the command `vgpumgr`), `sim` (the simulator), `gpu` (experiments on real GPUs),
`observer` (engine use from traces) and `oci` (containers of native tenants). Only `cli` uses other tools, and nothing
uses `cli`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Look up `__version__` on first use: importing importlib.metadata takes longer than most programs here run."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vgpumgr")
    except PackageNotFoundError:  # a source tree that is not installed, as in the lab host
        return "0+uninstalled"
