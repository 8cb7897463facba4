# SPDX-License-Identifier: Apache-2.0
"""OpenCL in the lab host itself: PoCL alone, and PoCL through a broker's tenant. There is no module and no guest."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.rig.drawing import COMPUTE, Frames, draw, frames
from tests.rig.gpu import poll
from tests.rig.product import BIN
from vgpumgr.broker.control import Control
from vgpumgr.errors import BrokerUnreachableError

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not COMPUTE.exists(), reason="this lab host does not compute: lab run --compute"),
]

CONFIGURATION = """
run_directory = "{directory}"

[tenants.blue]
memory = "64M"
"""
FRAMES = 8
START_S = 120.0


@contextmanager
def broker(folder: Path) -> Iterator[Path]:
    """A broker of the installed product with the tenant blue; yields its run directory."""
    directory, file = folder / "run", folder / "broker.toml"
    file.write_text(CONFIGURATION.format(directory=directory))
    installed = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen([BIN / "vgpumgr", "broker", "run", str(file)], env=installed) as process:
        try:

            def is_up() -> bool:
                assert process.poll() is None, "the broker has ended"
                try:
                    return bool(tenant(directory)["supervisor"]["state"] == "up")
                except BrokerUnreachableError:
                    return False

            poll(is_up, timeout_s=START_S)
            yield directory
        finally:
            process.terminate()


def tenant(directory: Path) -> dict[str, Any]:
    (found,) = Control(directory).show()["tenants"]
    return dict(found)


def test_a_program_draws_the_same_through_a_broker_as_on_pocl(tmp_path: Path) -> None:
    pictures = {way: tmp_path / f"{way}.ppm" for way in ("direct", "through")}

    def drawn(way: str, **environ: str) -> Frames:
        return frames(draw("--frames", str(FRAMES), "--output", str(pictures[way]), environ=environ))

    # Most of the time goes to compiling, which takes a processor each.
    with ThreadPoolExecutor() as pool, broker(tmp_path) as directory:
        direct = pool.submit(drawn, "direct")
        through = drawn("through", VGPUMGR_SOCKET=f"{directory}/blue.sock", OCL_ICD_VENDORS=f"{directory}/vendors")
        leased = tenant(directory)
        assert through == direct.result()
    assert len(through) == FRAMES
    assert leased["stats"]["leased_ns"] > 0, leased
    assert pictures["through"].read_bytes() == pictures["direct"].read_bytes()
