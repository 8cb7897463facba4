# SPDX-License-Identifier: Apache-2.0
"""The calls of an engine to `vgpumgr-oci`, and later processes of a container. The runtime prints its arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.oci_rig import BEFORE, Host, configuration, make_bundle, make_saying_runtime

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it makes device nodes, which takes root")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path / "host")
    found.programs.mkdir()
    (found.programs / "vgpu-native").touch(0o755)
    with found.sockets:
        yield found


@pytest.fixture
def runtime(tmp_path: Path) -> str:
    return make_saying_runtime(tmp_path)


# ---- later processes


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The file with the runtime's state of container `c`."""
    config = configuration("/bin/true", tenant="blue")
    bundle = make_bundle(tmp_path / "of-state", config)
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"id": "c", "bundle": str(bundle), "annotations": config["annotations"]}))
    return path


def process(tmp_path: Path, **more: object) -> Path:
    path = tmp_path / "process.json"
    path.write_text(json.dumps({"args": ["id"], "user": {"uid": 0, "gid": 0}, **more}))
    path.chmod(0o640)
    return path


def test_a_later_process_is_fenced(host: Host, runtime: str, state: Path, tmp_path: Path) -> None:
    path = process(tmp_path)
    for _ in range(2):
        result = host.call("exec", "-d", "--process", str(path), "c", cwd=tmp_path, runtime=runtime, STATE=str(state))
        assert result.stdout == f"exec -d --process {path} c\n", result.stderr
        assert json.loads(path.read_text())["args"] == [*BEFORE, "id"]
        assert path.stat().st_mode & 0o777 == 0o640


def test_a_later_process_of_another_container_is_left_alone(
    host: Host, runtime: str, state: Path, tmp_path: Path
) -> None:
    state.write_text("{}")
    result = host.call("exec", "--cap", "CAP_KILL", "c", "id", cwd=tmp_path, runtime=runtime, STATE=str(state))
    assert result.stdout == "exec --cap CAP_KILL c id\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("c", "id"), "is started with `exec --process FILE ID`"),
        (("--process", "{process}", "c", "id"), "is started with `exec --process FILE ID`"),
        (("--user", "1", "--process", "{process}", "c"), "is started with `exec --process FILE ID`"),
        (("--cap=CAP_SYS_ADMIN", "-p", "{process}", "c"), "is started with `exec --process FILE ID`"),
        (("--process", "nowhere", "c"), "nowhere does not exist"),
        (("--process", "{garbage}", "c"), "garbage is not valid JSON"),
        (("--process", "{privileged}", "c"), "privileged: a process could bypass the fence with CAP_SYS_ADMIN"),
    ],
)
def test_a_later_process_that_would_not_be_fenced_is_refused(
    host: Host, runtime: str, state: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "garbage").write_text("{")
    privileged = process(tmp_path, capabilities={"bounding": ["CAP_SYS_ADMIN"]}).rename(tmp_path / "privileged")
    names = {"process": process(tmp_path), "garbage": tmp_path / "garbage", "privileged": privileged}
    given = [each.format(**names) for each in arguments]
    result = host.call("exec", *given, cwd=tmp_path, runtime=runtime, STATE=str(state))
    assert (result.returncode, result.stdout) == (1, "")
    assert said in result.stderr
    assert json.loads(process(tmp_path).read_text())["args"] == ["id"]


def test_without_a_state_no_later_process_is_started(host: Host, runtime: str, tmp_path: Path) -> None:
    result = host.call("exec", "c", "id", cwd=tmp_path, runtime=runtime, STATE="/nowhere")
    assert (result.returncode, result.stdout) == (1, "")
    assert "did not return the container's state" in result.stderr


# ---- other calls of an engine


@pytest.mark.parametrize(
    "arguments",
    [
        "state c",
        "--log x kill c KILL",
        "--systemd-cgroup start c",
        "delete --force c",
        "--version",
        "create --help",
        "",
    ],
)
def test_what_starts_nothing_is_passed_on(host: Host, runtime: str, tmp_path: Path, arguments: str) -> None:
    (tmp_path / "state").write_text("state c\n")
    result = host.call(*arguments.split(), cwd=tmp_path, runtime=runtime, STATE=str(tmp_path / "state"))
    assert (result.stdout, result.returncode) == (f"{arguments}\n", 0), result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("frobnicate c", "'frobnicate' is a command that vgpumgr-oci does not know"),
        ("--wild create c", "'--wild' is an option that vgpumgr-oci does not know"),
        ("create --wild c", "'--wild' is an option of `create` that vgpumgr-oci does not know"),
        ("create -bundle x c", "'-bundle' is an option of `create`"),
        ("create --bundle x --bundle y c", "--bundle is given twice"),
        ("create -b x --bundle=y c", "--bundle is given twice"),
        ("create c --bundle x", "`create` takes the id of one container, after the options"),
        ("run --bundle", "--bundle needs a value"),
        ("exec -- c", "'--' is an option of `exec`"),
    ],
)
def test_what_is_not_understood_is_refused(host: Host, runtime: str, tmp_path: Path, arguments: str, said: str) -> None:
    result = host.call(*arguments.split(), cwd=tmp_path, runtime=runtime)
    assert (result.returncode, result.stdout) == (1, "")
    assert said in result.stderr


def test_a_container_with_a_gpu_is_not_restored(host: Host, runtime: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", configuration("/bin/true", tenant="blue"))
    result = host.call("restore", "--image-path", "x", "-b", str(bundle), "c", cwd=tmp_path, runtime=runtime)
    assert "a container with a GPU cannot be restored" in result.stderr


@pytest.mark.parametrize("form", ["json", "text"])
def test_engines_find_the_reason_in_their_log(host: Host, runtime: str, tmp_path: Path, form: str) -> None:
    log = tmp_path / "log"
    result = host.call("--log", str(log), "--log-format", form, "create", "c", "d", cwd=tmp_path, runtime=runtime)
    (line,) = log.read_text().splitlines()
    said = json.loads(line)["msg"] if form == "json" else json.loads(line.partition("msg=")[2])
    assert said == result.stderr.strip()
    assert said.startswith("vgpumgr: container.refused: `create` takes the id of one")


def test_the_real_runtime_is_the_one_that_is_set(host: Host, runtime: str, tmp_path: Path) -> None:
    assert "runtime not found: no-such; install one" in host.call("list", cwd=tmp_path, runtime="no-such").stderr
    etc = host.root / "etc/vgpumgr"
    etc.mkdir(parents=True)
    (etc / "oci.toml").write_text(f'runtime = "{runtime}"\n')
    assert host.call("list", cwd=tmp_path, runtime="").stdout == "list\n"
    for text, said in (
        ("runtime = 3\n", "runtime: must be a text"),
        ('run_directories = ["x"]\n', "run_directories: must be a list of absolute paths"),
        ("colour = 1\n", "colour: unknown field"),
        ("[", "is not valid TOML"),
    ):
        (etc / "oci.toml").write_text(text)
        result = host.call("list", cwd=tmp_path, runtime="")
        assert (result.returncode, result.stderr.split(": ")[1]) == (1, "settings.invalid")
        assert said in result.stderr
