# SPDX-License-Identifier: Apache-2.0
"""Where test servers keep their files, and that the files of a killed test are removed."""

import subprocess
from pathlib import Path

import pytest

from tests.api import cluster
from tests.api.cluster import place, until_closed


def test_files_are_in_memory_if_it_has_room_and_nobody_waits_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ROOM_BYTES", 1)
    assert place(durable=False, memory=tmp_path) == tmp_path
    assert place(durable=True, memory=tmp_path) is None
    assert place(durable=False, memory=tmp_path / "nowhere") is None
    monkeypatch.setattr(cluster, "ROOM_BYTES", 1 << 60)
    assert place(durable=False, memory=tmp_path) is None


@pytest.mark.parametrize(("said", "kept"), [(b"\n", True), (b"", False)], ids=["stopped", "killed"])
def test_files_of_a_test_that_was_killed_go_with_its_server(tmp_path: Path, said: bytes, kept: bool) -> None:
    files = tmp_path / "files"
    (files / "data").mkdir(parents=True)
    command = [*until_closed(files), "true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        server.communicate(said, timeout=60)
    assert files.exists() == kept
