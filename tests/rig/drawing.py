# SPDX-License-Identifier: Apache-2.0
"""The program that draws (tests/chain/programs/mandelbrot.c): how to run it, and what it prints."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMPUTE = Path("/usr/lib/vgpumgr")
"""Our programs, in lab hosts that compute: `lab run --compute`."""
PROGRAM = COMPUTE / "mandelbrot"
ZOOM_FRAMES = 96
"""A frame equals the one this many before it."""
OPENCL_ERROR = 3
LIMIT_S = 300.0

Frames = dict[int, str]
"""The checksum of each frame, by its number."""


def records(output: str) -> list[dict[str, Any]]:
    """Its complete lines of JSON, without lines of other programs."""
    lines = (line.strip() for line in output.splitlines())
    return [json.loads(line) for line in lines if line.startswith('{"record"') and line.endswith("}")]


def frames(output: str) -> Frames:
    return {line["frame"]: line["checksum"] for line in records(output) if line["record"] == "frame"}


def draw(*options: str, environ: Mapping[str, str] | None = None, program: Sequence[str] = (str(PROGRAM),)) -> str:
    """Run it in this lab host, on PoCL unless `environ` says otherwise. Raises CalledProcessError."""
    done = subprocess.run(
        [*program, *options],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **(environ or {})},
    )
    return done.stdout


def zoom(*options: str) -> Frames:
    """Compute all frames with PoCL itself."""
    return frames(draw("--frames", str(ZOOM_FRAMES), *options))


def wrong(found: Frames, right: Frames) -> Frames:
    """The frames that differ from those in `right`, which has at least the first frames of a zoom."""
    return {number: seen for number, seen in found.items() if seen != right[number % ZOOM_FRAMES]}
