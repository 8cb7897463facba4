# SPDX-License-Identifier: Apache-2.0
"""Compiles the shim from the present sources and makes it the one that is loaded."""

import importlib
from pathlib import Path

from vgpumgr.gpu import shim

ROOT = Path(__file__).resolve().parents[2]


def build_shim_if_stale() -> None:
    build = importlib.import_module("vgpumgr.gpu._build")
    sources = [ROOT / "vgpumgr/gpu/_build.py", *(ROOT / build.NATIVE).glob("*.[ch]")]
    try:
        built = shim.library()
    except shim.ShimMissingError:
        build.build(ROOT / "vgpumgr/gpu/_shim.so")
        return
    if built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        build.build(built)


build_shim_if_stale()
