# SPDX-License-Identifier: Apache-2.0
"""The programs that check results notice wrong ones, on a device in memory, with and without faults."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
TOOL = CHECKOUT / "kmod" / "guest" / "tool"
CLIENT = CHECKOUT / "tests" / "kmod" / "client"
EXERCISE = CHECKOUT / "tests" / "kmod" / "exercise"

pytestmark = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("make")), reason="needs gcc and make")


def build(source: Path, into: Path, program: str) -> Path:
    """Build a program outside the tree; its Makefile turns warnings into errors."""
    subprocess.run(["make", "-s", "-C", source, "CC=gcc", f"O={into}"], check=True, timeout=300)
    return into / program


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(TOOL, tmp_path_factory.mktemp("guest"), "vgpu-guest")


@pytest.fixture(scope="module")
def exercise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(EXERCISE, tmp_path_factory.mktemp("exercise"), "vgpu-exercise")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CLIENT, tmp_path_factory.mktemp("client"), "vgpu-client")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_selftest_notices_corruption_and_passes_sound_devices(exercise: Path) -> None:
    done = run(exercise, "selftest")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, [line for line in lines if line.startswith("FAIL")]
    for what in ("fill", "copy", "gemm"):
        assert f"ok   one wrong bit of {what} is noticed" in lines
        assert f"ok   {what} that did not run is noticed" in lines
    assert "ok   a wrong crc is noticed" in lines
    assert "ok   an empty queue is noticed" in lines
    assert lines[-1] == "selftest: 0 failed"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no command"),
        (("fly",), "unknown command"),
        (("saturate",), "unknown command"),
        (("submit", "boil"), "submit needs an operation"),
        (("info", "--colour", "red"), "--colour: unknown option"),
        (("info", "--json=1"), "--json: takes no value"),
        (("status", "--root"), "--root: needs a value"),
    ],
)
def test_the_guests_tool_refuses_a_bad_command_line(guest: Path, arguments: tuple[str, ...], reason: str) -> None:
    done = run(guest, *arguments)
    assert done.returncode == 2
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "no command"),
        (("fly",), "unknown command"),
        (("hostile",), "hostile: the name of a case"),
        (("saturate", "--op", "fill+boil"), "--op: unknown operation"),
        (("saturate", "--items", "-1"), "--items: not a whole number"),
        (("saturate", "--depth"), "--depth: needs a value"),
        (("saturate", "--nosplit=1"), "--nosplit: takes no value"),
        (("saturate", "--ready=1"), "--ready: takes no value"),
        (("fuzz", "--colour", "red"), "--colour: unknown option"),
    ],
)
def test_the_tests_program_refuses_a_bad_command_line(exercise: Path, arguments: tuple[str, ...], reason: str) -> None:
    done = run(exercise, *arguments)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_missing_device_is_named(guest: Path, client: Path) -> None:
    done = run(guest, "--device", "/dev/vgpu-none", "info")
    assert (done.returncode, done.stderr) == (3, "vgpu-guest: opening /dev/vgpu-none: No such file or directory\n")
    done = run(client, "11111111-2222-3333-4444-555555555555", "info")
    assert done.returncode == 3
    assert "11111111-2222-3333-4444-555555555555" in done.stderr


def test_client_refuses_bad_slice_specifications(client: Path) -> None:
    done = run(client, "--slice", "u,op=boil")
    assert (done.returncode, done.stderr) == (2, "vgpu-client: --slice u: op: unknown operation\n")
    assert run(client, "--entries", "1000", "u", "info").returncode == 2
