# SPDX-License-Identifier: Apache-2.0
"""The client's library alone, with a player in place of broker and child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compute.icd_rig import LIBRARY, LIMIT_S, ROOT, Played, compile_c, make


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("icd"))


def run(client: Path, scenario: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([client, scenario], env=environment, capture_output=True, text=True, timeout=LIMIT_S)


def done(result: subprocess.CompletedProcess[str]) -> None:
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["done"]), result.stderr


def test_a_launch_carries_all_arguments_of_its_kernel(played: Played) -> None:
    with played.play(["print"]) as (environment, player):
        done(run(played.client, "launch", environment))
        player.wait(LIMIT_S)
        assert player.stdout is not None
        lines = player.stdout.read().splitlines()
    launches = [line for line in lines if line.startswith("LAUNCH")]
    # The third launch waits for the second's event, unless that event has already completed.
    assert [line.partition("arguments")[2] for line in launches] == [
        " 2 data 16 global 64 kind 2 bytes 0 kind 1 bytes 16"
    ] * 3
    # The library does not wait for a creation that can only fail because memory runs out.
    assert "CREATE_BUFFER alone" in lines
    assert "CREATE_PROGRAM_WITH_SOURCE alone" in lines
    assert "CREATE_KERNEL call" in lines
    assert lines.count("FINISH call") == 1


def test_storage_in_the_window_is_copied_without_messages_when_the_queue_is_idle(played: Played) -> None:
    with played.play(["print"]) as (environment, player):
        done(run(played.client, "idle", environment))
        player.wait(LIMIT_S)
        assert player.stdout is not None
        sent = [line.split()[0] for line in player.stdout.read().splitlines()]
    after = sent[len(sent) - sent[::-1].index("CREATE_BUFFER") :]
    assert after == ["LAUNCH", "FINISH", "MARKER", "MAP_BUFFER", "UNMAP", "RELEASE"]


def test_finish_tells_of_a_failure_that_a_transfer_met_before(played: Played) -> None:
    done(played.run("unreported", "fail"))


def test_without_a_socket_there_is_no_platform(played: Played) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VGPUMGR_")}
    environment["OCL_ICD_VENDORS"] = str(played.vendors)
    result = run(played.client, "none", environment)
    done(result)
    wanted = "vgpumgr: VGPUMGR_SOCKET is not set; use vgpumgr run --tenant NAME -- PROGRAM"
    assert result.stderr == f"{wanted} (in a VM: there is no /dev/vgpu*-compute)\n"
    # Where the library is installed system-wide, most programs do not use it, so it must print nothing.
    del environment["OCL_ICD_VENDORS"]
    call = f"CDLL({str(LIBRARY)!r}).clIcdGetPlatformIDsKHR(0, None, byref(c_uint()))"
    code = f"from ctypes import CDLL, byref, c_uint; print({call})"
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (result.stdout, result.stderr) == ("-1001\n", "")


def test_a_socket_that_nobody_listens_on_is_named(played: Played, tmp_path: Path) -> None:
    environment = {**os.environ, "OCL_ICD_VENDORS": str(played.vendors), "VGPUMGR_SOCKET": str(tmp_path / "nothing")}
    result = run(played.client, "none", environment)
    done(result)
    assert result.stderr == f"vgpumgr: {tmp_path / 'nothing'}: No such file or directory\n"


def test_a_refused_client_says_why_and_finds_no_platform(played: Played) -> None:
    result = played.run("none", "refuse")
    done(result)
    assert result.stderr == "vgpumgr: refused: there are enough\n"


@pytest.mark.parametrize("how", ["lose", "vanish", "tail", "garbage"])
@pytest.mark.parametrize("when", [10, 41])
def test_a_lost_child_ends_every_call_and_every_wait(played: Played, how: str, when: int) -> None:
    scenario = "broken" if how == "garbage" else "lost"
    result = played.run(scenario, how, str(when))
    done(result)
    if how != "garbage":
        assert result.stderr == "vgpumgr: the accelerator's process is gone; this program's device is lost\n"


def test_a_child_that_cannot_serve_is_one_line_for_its_program(played: Played) -> None:
    result = played.run("none", "tell", "0")
    done(result)
    assert result.stderr == "vgpumgr: this program's device is lost: the kernel did not end in time\n"


def test_a_program_learns_why_its_device_was_lost(played: Played) -> None:
    result = played.run("lost", "tell", "30")
    done(result)
    assert result.stderr == "vgpumgr: this program's device is lost: the kernel did not end in time\n"


def test_a_request_ring_of_nonsense_is_a_lost_child(played: Played) -> None:
    done(played.run("full", "head", "10"))


@pytest.mark.parametrize("spin_us", ["0", "50"])
@pytest.mark.parametrize("scenario", ["fork", "callbacks", "threads", "flood"])
def test_a_program_works_however_waits_are_spent(played: Played, scenario: str, spin_us: str) -> None:
    done(played.run(scenario, "work", VGPUMGR_SPIN_US=spin_us))


def test_copies_of_a_program_with_busy_threads_do_not_hang(played: Played) -> None:
    done(played.run("forks", "work"))


def test_a_wait_of_one_thread_does_not_hold_others_up(played: Played) -> None:
    done(played.run("followers", "hold"))


@pytest.mark.parametrize("seed", [1, 2])
def test_replies_of_nonsense_crash_and_hang_nothing(played: Played, seed: int) -> None:
    done(played.run("chaos", "chaos", str(seed)))


@pytest.mark.long
def test_replies_of_nonsense_are_not_read_beyond_their_ends(played: Played, tmp_path: Path) -> None:
    sanitized = tmp_path / "sanitized"
    library = sanitized / "libvgpu-opencl.so"
    make(library, "SANITIZE=1", f"OUT={sanitized}")
    client = compile_c(
        tmp_path / "client", str(ROOT / "tests/compute/c/icd_client.c"), "-lOpenCL", "-fsanitize=address,undefined"
    )
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors" / "vgpu.icd").write_text(f"{library}\n")
    more = {"OCL_ICD_VENDORS": str(tmp_path / "vendors"), "ASAN_OPTIONS": "detect_leaks=0"}
    for scenario, mode in (("threads", "work"), ("flood", "work"), ("fork", "work"), ("lost", "lose")):
        with played.play([mode, *(["30"] if mode == "lose" else [])]) as (environment, _):
            done(run(client, scenario, {**environment, **more}))
    for seed in range(20):
        with played.play(["chaos", str(seed)]) as (environment, _):
            done(run(client, "chaos", {**environment, **more}))


def test_devices_do_not_show_what_is_not_carried(played: Played) -> None:
    done(played.run("masks", "work"))


def test_wrong_arguments_fail_before_anything_is_sent(played: Played) -> None:
    with played.play(["print"]) as (environment, player):
        done(run(played.client, "misuse", environment))
        player.wait(LIMIT_S)
        assert player.stdout is not None
        sent = player.stdout.read().splitlines()
    assert [line.split()[0] for line in sent] == [
        "HELLO",
        "CREATE_CONTEXT",
        "CREATE_QUEUE",
        "CREATE_BUFFER",
        "CREATE_PROGRAM_WITH_SOURCE",
        "BUILD_PROGRAM",
        "CREATE_KERNEL",
    ]
