# SPDX-License-Identifier: Apache-2.0
"""The agent's small parts: settings, applied shares, NVIDIA inventory, systemd notification, durable files."""

import configparser
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_agent import config
from vgpumgr_agent.api import ApiAwayError, HttpApi
from vgpumgr_agent.backends import nvml
from vgpumgr_agent.config import ConfigError
from vgpumgr_agent.files import write_durably
from vgpumgr_agent.main import main, run
from vgpumgr_agent.report import applied_permille

from tests.agent.fakeapi import GPU
from tests.agent.test_reconcile import observed, seen, seen_group
from vgpumgr.control import executor_settings
from vgpumgr.notify import notify

A, B = UUID(int=1), UUID(int=2)
ROOT = Path(__file__).parents[2]


# ---- settings


def test_settings_have_defaults(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('api_url = "https://api:8443"\n')
    found = config.load(tmp_path / "agent.toml")
    assert found.report_interval_s == 10
    assert str(found.hook_socket) == "/run/vgpumgr/hook.sock"
    assert str(found.helper_socket) == "/run/vgpumgr/helper.sock"


def test_what_is_set_for_one_gpu_counts_before_what_is_set_for_all() -> None:
    found = executor_settings.parse(
        {
            "executor": {"library": "/lib/pocl.so", "tasks_max": 9},
            "gpus": {"0000:3b:00.0": {"engine": "lease", "executor": {"library": "/lib/nvidia.so", "nvidia": 3}}},
        }
    )
    special, other = found.of("0000:3b:00.0"), found.of(GPU)
    assert (special.engine, str(special.executor.library), special.executor.tasks_max) == ("lease", "/lib/nvidia.so", 9)
    assert (other.engine, str(other.executor.library)) == ("", "/lib/pocl.so")
    assert special.executor.options()[-2:] == ["--nvidia", "3"]
    assert "--nvidia" not in other.executor.options()
    assert str(other.executor.program) == "/usr/lib/vgpumgr/vgpu-executor"


ASIDE = 'api_url = "x"\n[gpus."0000:3b:00.0"]\nworkload = '


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "api_url"), ("api_url = 7", "api_url"), ("api_url", "TOML"), ('api_url = "x"\nlease = 1', "lease"),
     ('api_url = "x"\nreport_interval_s = 0', "report_interval_s"),
     ('api_url = "x"\nreport_interval_s = 31', "report_interval_s"), ("\xff", "TOML"),
     ('api_url = "x"\n[executor]\nlibrary = "pocl"', "toml: executor.library: must be an absolute path"),
     ('api_url = "x"\n[executor]\npath = "/x"', "executor.path: unknown setting"),
     ('api_url = "x"\n[gpus.0]\nengine = "lease"', "gpus.'0': not a PCI address"),
     ('api_url = "x"\n[gpus."0000:3b:00.0"]\nengine = ""\nname = 1', "3b:00.0'.name: unknown setting"),
     ('api_url = "x"\n[gpus."0000:3b:00.0"]\nengine = "Lease"', "3b:00.0'.engine: not the name of an engine"),
     ('api_url = "x"\n[gpus."0000:3b:00.0".executor]\ntasks_max = -1', "tasks_max: must be a number from 0"),
     ('api_url = "x"\n[gpus."0000:3b:00.0".executor]\nnvidia = 32', "nvidia: must be a number from 0 to 31"),
     (f'{ASIDE}"both"', '3b:00.0\'.workload: must be "vm", or "process"'),
     (f'{ASIDE}"process"', '3b:00.0\'.executor.nvidia: workload = "process" needs it'),
     (f'{ASIDE}"process"\nengine = "lease"\nexecutor = {{nvidia = 0}}', "3b:00.0'.engine: a GPU with workload ="),
     (f'{ASIDE}"process"\nsocket_group = "a b"\nexecutor = {{nvidia = 0}}', "3b:00.0'.socket_group: must be the name"),
     (f'{ASIDE}"vm"\nsocket_group = "users"', "3b:00.0'.socket_group: must be the name of a group, for a GPU with")],
)  # fmt: skip
def test_settings_that_cannot_be_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=named):
        config.load(path)
    assert main(["--config", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"vgpumgr-agent: {path}")


def test_the_command_reads_the_settings_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "second.toml"
    path.write_text("api_url = 7\n")
    monkeypatch.setattr(sys, "argv", ["vgpumgr-agent", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"vgpumgr-agent: {path}: ")


def test_settings_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="api_url"):
        config.load(tmp_path / "none.toml")


@pytest.mark.parametrize("url", ["http://api:8470", "http://192.0.2.1", "http://127.0.0.1.example:80"])
def test_a_token_does_not_travel_in_clear_text_beyond_this_machine(url: str) -> None:
    with pytest.raises(ApiAwayError, match="in clear text; use https"):
        HttpApi(url)


@pytest.mark.parametrize("url", ["https://api:8470", "http://localhost:8470", "http://127.0.0.1:8470", "http://[::1]"])
def test_an_api_with_tls_or_on_this_machine_is_used(url: str) -> None:
    HttpApi(url)


# ---- applied share: (groups, slices) -> permille of slice A

SHARES: dict[str, tuple[list[Any], list[Any], int]] = {
    "weights as they should be": ([seen_group(weight=600)], [seen(A, weight=300), seen(B, weight=300)], 300),
    "alone of two": ([seen_group(weight=600)], [seen(A, weight=300)], 300),
    "another tenant, overbooked": ([seen_group(weight=600), seen_group("x", weight=1400)], [seen(A, weight=600)], 300),
    "another tenant with room": ([seen_group(weight=600), seen_group("x", weight=100)], [seen(A, weight=600)], 600),
    "slices that outweigh their group": ([seen_group(weight=300)], [seen(A, weight=300), seen(B, weight=300)], 150),
    "a cap of the group": ([seen_group(weight=600, cap_us=100, cap_period_us=1000)], [seen(A, weight=300)], 50),
    "a cap of its own": ([seen_group(weight=600)], [seen(A, weight=300, cap_us=1, cap_period_us=10)], 100),
    "a group that is not configured": ([seen_group(configured=False)], [seen(A)], 0),
    "no group": ([], [seen(A)], 0),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARES)
def test_applied_share(case: str) -> None:
    groups, slices, permille = SHARES[case]
    found = observed(*slices, groups=tuple(groups))
    assert applied_permille(found.slices[A], found) == permille


def test_groups_of_other_gpus_do_not_count() -> None:
    found = observed(seen(A, weight=600), groups=(seen_group(weight=600), seen_group(gpu="0000:00:11.0", weight=9000)))
    assert found.slices[A].gpu == GPU
    assert applied_permille(found.slices[A], found) == 600


# ---- NVIDIA


class FakeNvml:
    """A pynvml with one GPU. `fails`: the call that raises."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails: str = "") -> None:
        self.open = 0
        self.fails = fails

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetPciInfo": SimpleNamespace(domain=0, bus=0x3B, device=0, pciDeviceId=0x27B810DE),
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "NVIDIA L4",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=24 << 30),
        }

        def call(*_: object) -> Any:
            if name == self.fails:
                raise self.NVMLError(name)
            self.open += {"nvmlInit": 1, "nvmlShutdown": -1}.get(name, 0)
            return answers.get(name)

        return call


def test_nvidia_gpus_are_inventory_without_types() -> None:
    fake = FakeNvml()
    (found,) = nvml.discover(fake)
    assert (found.address, found.engine, found.backend) == ("0000:3b:00.0", "NVIDIA L4", "unmanaged")
    assert (found.mem_bytes, dict(found.types), fake.open) == (24 << 30, {}, 0)
    assert (found.uuid, found.pci_ids) == ("GPU-1", "10de:27b8")


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetPciInfo"])
def test_a_driver_that_is_missing_or_fails_means_no_gpus(fails: str) -> None:
    fake = FakeNvml(fails)
    assert nvml.discover(fake) == []
    assert fake.open == 0


# ---- systemd


@pytest.mark.parametrize("abstract", [False, True])
def test_notify_says_what_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    address = f"\0vgpumgr-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
        notify(ready=True, watchdog=True, status="two\nlines")
        assert service_manager.recv(100) == b"READY=1\nWATCHDOG=1\nSTATUS=two lines"
    notify(ready=True)  # no process listens any more


def test_notify_outside_a_unit_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify(ready=True)


# The agent restarts executors itself, at its own pace.
@pytest.mark.parametrize("path", sorted(ROOT.glob("a[gp]*/systemd/*[!@].service")), ids=lambda path: path.name)
def test_services_are_started_again_however_often_they_fail(path: Path) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.read_string(path.read_text())
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["Restart"] == "on-failure"


# ---- files


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_durably(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        write_durably(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    assert path.stat().st_mode & 0o777 == 0o600


# ---- the helper's imports


def test_the_helper_needs_nothing_but_the_standard_library() -> None:
    names = "pydantic", "httpx2", "rich", "typer"
    code = f"import sys, vgpumgr_agent.helper.main; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
