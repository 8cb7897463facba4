# SPDX-License-Identifier: Apache-2.0
"""A fake GPU with its driver for the duration of a `with` block. Experiments use it where there is no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from tests.gpu.fakerm.build import cuda_library, device_library
from tests.gpu.fakerm.gpu import Behaviour
from vgpumgr.gpu.duel import Rig

ROOT = Path(__file__).resolve().parents[3]


class FakeRm:
    """Owns the server process and its folder.

    style: words that cuda.c knows. cuda_version: libcuda's version, if it differs from the driver's. directory: the
    caller's directory for socket and clock.
    """

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        version: str = "580.142",
        cuda_version: str | None = None,
        style: str = "",
        refuse_timeslice: bool = False,
        refuse_wfi: bool = False,
        refuse_disable: bool = False,
        refuse_later_disable: bool = False,
        refuse_cilp: bool = False,
        disable_s: float = 0.0,
        info_s: float = 0.0,
        directory: Path | None = None,
        dies_after_ns: int | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "behaviour": asdict(behaviour or Behaviour()),
            "version": version,
            "refuse_timeslice": refuse_timeslice,
            "refuse_wfi": refuse_wfi,
            "refuse_disable": refuse_disable,
            "refuse_later_disable": refuse_later_disable,
            "refuse_cilp": refuse_cilp,
            "disable_s": disable_s,
            "info_s": info_s,
            "dies_after_ns": dies_after_ns,
        }
        self._cuda_version = cuda_version or version
        self._style = style
        self._folder = None if directory else tempfile.TemporaryDirectory(prefix="fakerm-")
        self.directory = directory or Path(self._folder.name)  # type: ignore[union-attr]

    def __enter__(self) -> Self:
        options = json.dumps({"directory": str(self.directory), **self._options})
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.fakerm.server", options],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n", "the fake's server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate(timeout=30)
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        folders = [str(cuda_library().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {
            "FAKERM_SOCKET": str(self.directory / "socket"),
            "FAKERM_CLOCK": str(self.directory / "clock"),
            "FAKERM_CUDA_VERSION": self._cuda_version,
            "FAKERM_CUDA_STYLE": self._style,
            "LD_LIBRARY_PATH": os.pathsep.join(folders),
        }

    @property
    def rig(self) -> Rig:
        return Rig(kind="fake", preload=(device_library(),), environment=self.environment)

    def log(self) -> list[dict[str, Any]]:
        """Return every allocation and control that reached the driver. Ends the server."""
        self._server.communicate(timeout=30)
        found: list[dict[str, Any]] = json.loads((self.directory / "log.json").read_text())
        return found
