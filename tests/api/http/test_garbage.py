# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collector takes little of the time of requests."""

import re
import signal
from pathlib import Path

import httpx2

from tests.api.http.process import serving

AT_ITS_END = """
import atexit, gc, sys
begun = [0]

def seen(phase, _):
    begun[0] += phase == "start" and gc.get_freeze_count() > 0

gc.callbacks.append(seen)
atexit.register(lambda: print(f"frozen {gc.get_freeze_count()}, looked {begun[0]} times", file=sys.stderr))
"""
REQUESTS = 200


def test_what_was_there_before_the_first_request_is_not_looked_at_and_the_rest_seldom(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_ITS_END)
    with (
        serving(tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=60) as http,
    ):
        for _ in range(REQUESTS):
            assert http.get("/v1/health").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=30) == 0
        said = re.search(r"^frozen (\d+), looked (\d+) times$", server.log.read_text(), re.M)
    assert said is not None
    assert int(said[1]) > 100_000
    assert int(said[2]) < REQUESTS / 10
