# SPDX-License-Identifier: Apache-2.0
"""`host doctor` on a GPU with a lending engine: each thing that a VM's executor needs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Cli
from tests.unit.cli.fake_content import GPU
from tests.unit.cli.test_doctor import examine, healthy, write

LIBRARY = "/usr/lib/libpocl.so.2"
CHECK = f"executor {GPU}"
ENGINE = f"sys/bus/pci/devices/{GPU}/vgpu/engine"
SETTINGS = f'[executor]\nlibrary = "{LIBRARY}"\n[gpus."{GPU}"]\nengine = "lease"\n'
UNIT = "etc/systemd/system/vgpumgr-executor@.service"


def program(root: Path, text: str) -> None:
    write(root / "usr/lib/vgpumgr/vgpu-executor", f"#!/bin/sh\n{text}\n", 0o755)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A healthy host whose GPU's engine lends."""
    with healthy(tmp_path / "root") as made:
        write(made / "etc/vgpumgr/agent.toml", SETTINGS)
        write(made / ENGINE, "lease\n")
        program(made, f'[ "$1 $2 $3" = "--check --library {LIBRARY}" ]')
        for name in ("usr/lib/vgpumgr/vgpu-supervisor", "usr/lib/vgpumgr/vgpu-child", LIBRARY.lstrip("/"), UNIT):
            write(made / name, "")
        write(made / "dev/vgpumgr-exec", "")
        write(made / "sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
        (made / "run/systemd/system").mkdir(parents=True)
        yield made


def test_a_host_that_lends_where_all_is_well(cli: Cli, root: Path) -> None:
    status, findings = examine(cli, root)
    assert status == 0
    assert findings[f"engine {GPU}"] == ("ok", "lease", "")
    assert findings[CHECK] == ("ok", f"a child can serve with {LIBRARY}", "")
    assert findings["executor cgroups"][0] == "ok"


def test_where_no_gpu_lends_nothing_is_said_of_executors(cli: Cli, root: Path) -> None:
    write(root / ENGINE, "soft\n")
    write(root / "etc/vgpumgr/agent.toml", f'[executor]\nlibrary = "{LIBRARY}"\n')
    (root / "usr/lib/vgpumgr/vgpu-executor").unlink()
    status, findings = examine(cli, root)
    assert status == 0
    assert not [check for check in findings if check.startswith(("executor", "engine"))]


@pytest.mark.parametrize(
    ("check", "grade", "do", "found"),
    [
        ("executors", "fail", lambda root: write(root / "etc/vgpumgr/agent.toml", "[gpus.x]"), "gpus.'x'"),
        (f"engine {GPU}", "fail", lambda root: write(root / ENGINE, "soft\n"), "soft, but "),
        (f"engine {GPU}", "fail", lambda root: (root / ENGINE).unlink(), "the module's only one, but "),
        (CHECK, "fail", lambda root: write(root / "etc/vgpumgr/agent.toml", ""), "does not name a library"),
        (CHECK, "fail", lambda root: (root / "usr/lib/vgpumgr/vgpu-child").unlink(), "vgpu-child is missing"),
        (CHECK, "fail", lambda root: (root / LIBRARY.lstrip("/")).unlink(), f"{LIBRARY} is missing"),
        ("executor device", "fail", lambda root: (root / "dev/vgpumgr-exec").unlink(), "is missing"),
        ("executor unit", "fail", lambda root: (root / UNIT).unlink(), "is not installed"),
        ("executor cgroups", "warn", lambda root: (root / "sys/fs/cgroup/cgroup.controllers").unlink(), "no unified"),
    ],
)
def test_each_thing_that_is_missing_is_found(
    cli: Cli, root: Path, check: str, grade: str, do: Callable[[Path], None], found: str
) -> None:
    do(root)
    status, findings = examine(cli, root)
    assert status == (1 if grade == "fail" else 8)
    assert findings[check][0] == grade
    assert found in findings[check][1]
    assert findings[check][2]


def test_without_systemd_no_unit_is_missed(cli: Cli, root: Path) -> None:
    (root / "run/systemd/system").rmdir()
    (root / UNIT).unlink()
    assert examine(cli, root)[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root are told that it was not checked")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('echo "usage" >&2; echo "vgpu-executor: no child can serve" >&2; exit 1', "vgpu-executor: no child can serve"),
        ("exit 3", "/usr/lib/vgpumgr/vgpu-executor exits with 3"),
    ],
)
def test_a_library_with_which_no_child_serves_is_found(cli: Cli, root: Path, text: str, found: str) -> None:
    program(root, text)
    status, findings = examine(cli, root)
    assert (status, findings[CHECK][:2]) == (1, ("fail", found))


def test_a_program_that_cannot_run_gives_no_answer(cli: Cli, root: Path) -> None:
    (root / "usr/lib/vgpumgr/vgpu-executor").chmod(0o644)
    _, findings = examine(cli, root)
    assert "did not answer: PermissionError" in findings[CHECK][1]
