# SPDX-License-Identifier: Apache-2.0
"""Picks kernel modules, with everything they depend on, for an initial RAM disk."""

import lzma
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labhost.errors import LabError


@dataclass(frozen=True)
class Module:
    """A module of a kernel: `name` as lsmod shows it, `path` relative to /lib/modules/RELEASE."""

    name: str
    path: str
    data: bytes


class ModuleTree:
    """The modules of one kernel, as depmod described them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._dependencies: dict[str, list[str]] = {}
        self._paths: dict[str, str] = {}
        for line in (directory / "modules.dep").read_text(encoding="ascii").splitlines():
            path, _, needs = line.partition(":")
            self._paths[_module_name(path)] = path
            self._dependencies[_module_name(path)] = [_module_name(need) for need in needs.split()]
        built_in = (directory / "modules.builtin").read_text(encoding="ascii").splitlines()
        self._built_in = {_module_name(path) for path in built_in}

    def closure(self, names: Iterable[str]) -> list[Module]:
        """Return modules in an order in which they can be inserted uncompressed; built-in ones are left out.

        Raises LabError for a name that the kernel does not have.
        """
        ordered: dict[str, Module] = {}
        for wanted in names:
            for name in self._insertion_order(wanted):
                if name not in ordered:
                    path = self._paths[name]
                    ordered[name] = Module(name, path.removesuffix(".xz"), _read(self._directory / path))
        return list(ordered.values())

    def has(self, name: str) -> bool:
        """Whether the kernel has the module, loadable or built in."""
        return name in self._paths or name in self._built_in

    def _insertion_order(self, wanted: str) -> Iterator[str]:
        if wanted in self._built_in:
            return
        if wanted not in self._paths:
            raise LabError(f"kernel module {wanted} is not in {self._directory}")
        # depmod lists all dependencies, direct and indirect; the last is inserted first
        yield from reversed(self._dependencies[wanted])
        yield wanted


def needed_by(module: Path) -> list[str]:
    """Names of the modules on which a module outside a tree depends (its modinfo `depends`)."""
    _, mark, rest = module.read_bytes().partition(b"\0depends=")
    return [name.decode() for name in rest.partition(b"\0")[0].split(b",") if name] if mark else []


def _module_name(path: str) -> str:
    return path.rsplit("/", 1)[-1].partition(".ko")[0].replace("-", "_")


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data
