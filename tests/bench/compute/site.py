# SPDX-License-Identifier: Apache-2.0
"""A broker with tenants for a measurement, and programs that run directly or through one of the tenants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
BUILT = ROOT / "build" / "bench" / "compute"
VGPUMGR = (str(Path(sys.executable).parent / "vgpumgr"),)
LOG = BUILT / "broker.log"
START_S = 30


def built(name: str, *libraries: str) -> Path:
    """Return the program of NAME.c, compiled if its source is newer. Raises CalledProcessError."""
    source, program = HERE / f"{name}.c", BUILT / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        BUILT.mkdir(parents=True, exist_ok=True)
        command = (
            "gcc",
            "-O2",
            "-Wall",
            "-Wextra",
            "-o",
            str(program),
            str(source),
            *(f"-l{name}" for name in libraries),
        )
        subprocess.run(command, check=True)
    return program


def figures(output: str) -> dict[str, float]:
    """Parse lines "NAME VALUE"."""
    words = (line.split() for line in output.splitlines())
    return {line[0]: float(line[1]) for line in words if len(line) == 2}


@dataclass(frozen=True)
class Site:
    """A running broker. `directory`: holds its sockets."""

    directory: Path

    def command(self, tenant: str, words: Sequence[str | Path]) -> list[str]:
        """Return the command line that runs `words` in `tenant`."""
        return [*VGPUMGR, "run", "--run-directory", str(self.directory), "--tenant", tenant, "--", *map(str, words)]

    def run(self, tenant: str | None, *words: str | Path, environment: Mapping[str, str] | None = None) -> str:
        """Run a command, in `tenant` or directly, and return its standard output. Raises CalledProcessError."""
        done = self.start(tenant, *words, environment=environment)
        output, _ = done.communicate()
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, list(words), output)
        return str(output)

    def start(
        self, tenant: str | None, *words: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start the command without waiting for its end."""
        command = list(map(str, words)) if tenant is None else self.command(tenant, words)
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env={**os.environ, **(environment or {})})

    def tenants(self) -> dict[str, dict[str, Any]]:
        """Return the broker's record of each tenant, by name."""
        show = [*VGPUMGR, "broker", "show", "--run-directory", str(self.directory), "-o", "json"]
        shown = subprocess.run(show, check=True, capture_output=True, text=True)
        return {tenant["name"]: tenant for tenant in json.loads(shown.stdout)["tenants"]}


@contextmanager
def site(configuration: str) -> Iterator[Site]:
    """Run a broker with this configuration (TOML, docs/compute.md) until the block ends."""
    with tempfile.TemporaryDirectory(prefix="vgpumgr-bench-") as directory:
        BUILT.mkdir(parents=True, exist_ok=True)
        file, run = Path(directory) / "broker.toml", Path(directory) / "run"
        file.write_text(f'run_directory = "{run}"\n{configuration}')
        with (
            LOG.open("w") as log,
            subprocess.Popen([*VGPUMGR, "broker", "run", str(file)], stderr=log) as broker,
        ):
            try:
                wait_for_broker(Site(run), broker)
                yield Site(run)
            finally:
                broker.terminate()


def wait_for_broker(running: Site, broker: subprocess.Popen[bytes]) -> None:
    """Wait until the broker answers. Raises TimeoutError, and ChildProcessError if the broker ends."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        if broker.poll() is not None:
            raise ChildProcessError(f"the broker ended with status {broker.returncode}")
        try:
            running.tenants()
        except subprocess.CalledProcessError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("the broker does not answer")
