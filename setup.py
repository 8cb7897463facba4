# SPDX-License-Identifier: Apache-2.0
"""Adds the one thing pyproject.toml cannot say: extensions that may fail to build.

``vgpumgr.sched`` is the scheduler core of kmod/sched behind cffi, ``vgpumgr.sim`` the simulator's
engine beside it; ``vgpumgr.gpu`` has a library for LD_PRELOAD. Only the simulator, the GPU
experiments and the tests need them, so a machine without a C compiler still gets everything else,
with a warning. Where the core is there, a broker's configuration is also checked by it in advance.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FFI_BUILDERS = ("vgpumgr/sched/_build.py", "vgpumgr/sim/_build.py")
SHIM_BUILD = Path(__file__).parent / "vgpumgr/gpu/_build.py"


class OptionalBuildExt(build_ext):
    """Turns a failed compilation into a warning."""

    def finalize_options(self) -> None:
        super().finalize_options()
        for extension in self.extensions:
            extension.optional = True

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            print(
                f"warning: {ext.name} was not built: is a C compiler with Python's headers"
                " (gcc, python3-dev) installed? Everything but the simulator and GPU experiments works without it.",
                file=sys.stderr,
            )
            raise  # setuptools itself goes on, because the extension is optional


arguments: dict[str, Any] = {"cmdclass": {"build_ext": OptionalBuildExt}}
present = [name for name in FFI_BUILDERS if (Path(__file__).parent / name).exists()]
if present:
    arguments["cffi_modules"] = [f"{name}:ffibuilder" for name in present]

if SHIM_BUILD.exists():
    shim = runpy.run_path(str(SHIM_BUILD))
    arguments["ext_modules"] = [
        Extension(
            "vgpumgr.gpu._shim",
            sources=[f"{shim['NATIVE']}/{name}" for name in shim["SOURCES"]],
            depends=[f"{shim['NATIVE']}/{name}" for name in shim["HEADERS"]],
            extra_compile_args=list(shim["COMPILE_ARGUMENTS"]),
            extra_link_args=list(shim["LINK_ARGUMENTS"]),
            py_limited_api=True,
        )
    ]

setup(**arguments)
