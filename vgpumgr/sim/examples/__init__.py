# SPDX-License-Identifier: Apache-2.0
"""Built-in scenarios to start from, one for each idea. They are data files of this package."""

from importlib import resources

from vgpumgr.errors import ScenarioError

_SUFFIX = ".yaml"


def names() -> list[str]:
    """Return the names of all examples."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))


def text(name: str) -> str:
    """Return an example as YAML. ScenarioError."""
    if name not in names():
        raise ScenarioError(f"{name[:80]!r}: no such example; expected one of {', '.join(names())}")
    return (resources.files(__name__) / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
