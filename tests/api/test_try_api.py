# SPDX-License-Identifier: Apache-2.0
"""docs/try-api.md, executed word for word."""

import re
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "try-api.md"
PORT = "8470"


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def done(directory: Path) -> str:
    """Runs the page's commands in a directory that looks like a checkout after `make setup`; returns their output."""
    (directory / "build").mkdir()
    (directory / "build" / "venv").symlink_to(sys.prefix)
    script = "".join(blocks()).replace(PORT, free_port())
    # Unlike in an interactive shell, the first error ends the script and the server with it.
    shell = ("bash", "-e", "-u", "-o", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n" + script)
    ran = subprocess.run(shell, cwd=directory, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_page_works_as_it_is(tmp_path: Path) -> None:
    said = done(tmp_path)
    assert "as it should: the quota is used up" in said
    assert "as it should: quota.exceeded the quota of account blue" in said
    assert re.search(r"^\S+Z +\S+Z +blue +blue .* not closed$", said, re.M)
    assert re.search(r"^trial/all.backup: \d+ rows as of", said, re.M)
    gpus, slices = (re.search(rf"^{head}.*\n(.*)$", said, re.M) for head in ("HOST +GPU", "ID .* STATE"))
    assert gpus is not None
    assert re.match(r"gpu-a +0000:3b:00.0 +soft +vgpumgr +0/1000 +0/1G", gpus[1])
    assert slices is not None
    quotas = re.findall(r"^blue +(\d+/500)", said, re.M)
    assert quotas == ["0/500", "500/500", "250/500"]
    for state in ("attached", "releasing"):
        assert f"slice.{state}" in said, said
    assert "Traceback" not in (tmp_path / "trial" / "api.log").read_text()
