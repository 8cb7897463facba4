# SPDX-License-Identifier: Apache-2.0
"""The broker's configuration file: accepted input, refused input with the field, and what the broker receives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from vgpumgr.broker.configuration import Engine, Native, Tenant, document, read
from vgpumgr.broker.places import Programs, default_directory, find_directory, launcher, pocl_library, programs
from vgpumgr.errors import BrokerMissingError, SettingsError
from vgpumgr.sizes import format_size

PROGRAMS = Programs(broker=Path("/p/b"), supervisor=Path("/p/s"), child=Path("/p/c"), library=Path("/p/l.so"))
LIBRARY = '[accelerator]\nlibrary = "/bin/sh"\n'
BLUE = "[tenants.blue]\n"


def settings(tmp_path: Path, text: str) -> dict[str, Any]:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    return document(read(file), PROGRAMS)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(tmp_path, text)
    return str(caught.value).removeprefix(f"{tmp_path / 'broker.toml'}: ")


def test_a_tenant_without_fields_has_defaults(tmp_path: Path) -> None:
    found = settings(tmp_path, LIBRARY + BLUE)
    assert found["programs"] == {"supervisor": "/p/s", "child": "/p/c", "library": "/bin/sh"}
    assert found["engine"]["processors"] == 0
    blue = found["tenants"][0]
    assert (blue["name"], blue["weight"], blue["timeslice_ns"], blue["band"]) == ("blue", 100, 5_000_000, "fair")
    assert (blue["cap_ns"], blue["reserve_ns"], blue["memory_bytes"], blue["window_bytes"]) == (0, 0, 2**30, 2**26)
    assert blue["compile_cache_bytes"] == 2**26
    assert (blue["max_processes"], blue["socket_mode"], blue["socket_gid"]) == (16, 0o600, 2**32 - 1)


def test_a_gpu_whose_channels_the_gate_stops(tmp_path: Path) -> None:
    assert settings(tmp_path, LIBRARY + "nvidia = 3\n" + BLUE)["programs"]["nvidia"] == 3
    assert "accelerator.nvidia" in refusal(tmp_path, LIBRARY + "nvidia = 32\n" + BLUE)
    assert "accelerator.nvidia" in refusal(tmp_path, LIBRARY + "nvidia = -1\n" + BLUE)


GPU = "[accelerator]\nnvidia = 0\n"
NATIVE = "native = true\n"


def test_tenants_that_hold_the_gpu_themselves_need_no_library(tmp_path: Path) -> None:
    found = settings(tmp_path, GPU + BLUE + NATIVE)
    assert found["programs"] == {"supervisor": "/p/s", "child": "/p/c", "nvidia": 0}
    assert found["engine"]["processors"] == 0
    assert found["native"] == {"turns": "firmware", "period_ns": 40_000_000}
    assert found["tenants"][0]["native"] is True
    assert settings(tmp_path, LIBRARY + BLUE)["tenants"][0]["native"] is False


def test_turns_of_the_gate_are_for_native_tenants_and_others(tmp_path: Path) -> None:
    text = f'{LIBRARY}nvidia = 0\n[native]\nturns = "gate"\nperiod_us = 20000\n{BLUE}{NATIVE}[tenants.red]\n'
    found = settings(tmp_path, text)
    assert found["programs"]["library"] == "/bin/sh"
    assert found["native"] == {"turns": "gate", "period_ns": 20_000_000}
    assert [tenant["native"] for tenant in found["tenants"]] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BLUE + NATIVE, "tenants.blue.native: give accelerator.nvidia, the N of the /dev/nvidiaN"),
        (GPU + BLUE + "native = 1\n", "tenants.blue.native: must be true or false"),
        (GPU + BLUE + NATIVE + "[tenants.red]\n", 'native.turns: with "firmware" the GPU divides its time by itself'),
        (
            GPU + BLUE + NATIVE + "reserve_us = 2000\nreserve_period_us = 25000\n",
            "tenants.blue.reserve_us: the GPU keeps no reservations by itself",
        ),
        (GPU + "[native]\nturns = 'turns'\n" + BLUE, 'native.turns: must be "firmware" or "gate"'),
        (GPU + "[native]\nperiod_us = 19999\n" + BLUE, "native.period_us: must be at least 20000"),
        (GPU + "[native]\nperiod_us = 100001\n" + BLUE, "native.period_us: must be at most 100000"),
        (GPU + "[native]\nlimit = 3\n" + BLUE, "native.limit: unknown field"),
        ("native = true\n" + BLUE, "native: must be a table: write [native]"),
    ],
)
def test_what_native_tenants_cannot_have_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path, text).startswith(said)


def test_everything_is_given_in_bytes_and_nanoseconds(tmp_path: Path) -> None:
    text = """
    share_permille = 250
    timeslice_us = 2000
    cap_permille = 300
    cap_period_us = 50000
    burst_us = 9000
    reserve_us = 1500
    reserve_period_us = 40000
    memory = "2G"
    window = 8388608
    compile_cache = "8M"
    socket_mode = "0660"
    socket_group = "root"
    processes_per_minute = 60
    """
    blue = settings(tmp_path, LIBRARY + BLUE + text)["tenants"][0]
    assert (blue["weight"], blue["band"]) == (250, "latency")
    assert (blue["cap_ns"], blue["cap_period_ns"], blue["burst_ns"]) == (15_000_000, 50_000_000, 9_000_000)
    assert (blue["reserve_ns"], blue["reserve_period_ns"]) == (1_500_000, 40_000_000)
    assert (blue["memory_bytes"], blue["window_bytes"], blue["compile_cache_bytes"]) == (2**31, 2**23, 2**23)
    assert (blue["socket_mode"], blue["socket_gid"]) == (0o660, 0)
    assert blue["process_interval_ns"] == 10**9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "tenants: give at least one tenant, like [tenants.blue]"),
        ("[tenants]\n", "tenants: give at least one tenant, like [tenants.blue]"),
        ("tenants = 3\n", "tenants: must be a table: write [tenants.blue] for a tenant blue"),
        ("[tenants]\nblue = 3\n", "tenants.blue: must be a table: write [tenants.blue]"),
        ("engine = 3\n" + BLUE, "engine: must be a table: write [engine]"),
        ("".join(f"[tenants.t{number}]\n" for number in range(257)), "tenants: there are at most 256"),
        ("run_directory = 3\n" + BLUE, "run_directory: must be a text in quotes"),
        ("colour = 3\n" + BLUE, "colour: unknown field"),
        (BLUE + "wieght = 3\n", "tenants.blue.wieght: unknown field"),
        (BLUE + "weight = 0\n", "tenants.blue.weight: must be at least 1"),
        (BLUE + "weight = '3'\n", "tenants.blue.weight: must be a whole number"),
        (BLUE + "weight = 3\nshare_permille = 3\n", "tenants.blue: weight and share_permille are the same"),
        (BLUE + "reserve_us = 3\n", "tenants.blue: reserve_us and reserve_period_us go together"),
        (
            BLUE + "hold_max_us = 3\n",
            "tenants.blue: hold_max_us and inversion_permille are for a tenant with reserve_us",
        ),
        (BLUE + "memory = '2GB'\n", "tenants.blue.memory: size '2GB' is ambiguous; write 2G or 2GiB"),
        (BLUE + "memory = 1.5\n", 'tenants.blue.memory: must be a whole number of bytes, or a text like "64M"'),
        (BLUE + "window = '32G'\n", "tenants.blue.window: must be at most 16G"),
        (BLUE + "socket_mode = 660\n", 'tenants.blue.socket_mode: must be a mode in quotes, like "0660"'),
        (BLUE + "memory = '64K'\n", "tenants.blue.memory: must be at least 1M"),
        (BLUE + "window = 4194305\n", "tenants.blue.window: must be a multiple of 4K"),
        (BLUE + "socket_mode = '660'\n", 'tenants.blue.socket_mode: must be a mode in quotes, like "0660"'),
        (BLUE + "max_processes = 65\n", "tenants.blue.max_processes: must be at most 64"),
        ("[tenants.Blue]\n", "tenants.Blue: a tenant's name has 1 to 63 characters"),
        ('[tenants."a/b"]\n', "tenants.a/b: a tenant's name has 1 to 63 characters"),
        ("[engine]\ngrace_us = -1\n" + BLUE, "engine.grace_us: must be at least 0"),
    ],
)
def test_what_is_wrong_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    found = refusal(tmp_path, text)
    assert found.startswith(said)
    assert "Input" not in found  # a word of pydantic's messages


def rows_of_the_manual() -> dict[str, list[str]]:
    """The cells of each row that describes one field: default, bounds, meaning."""
    manual = (Path(__file__).resolve().parents[2] / "docs/compute.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in manual.splitlines() if line.startswith("| `")]
    return {first.strip("`"): rest for first, *rest in cells}


@pytest.mark.parametrize("table", [Tenant, Engine, Native])
def test_every_field_is_in_the_manual_with_its_bounds(table: type[Tenant] | type[Engine] | type[Native]) -> None:
    rows = rows_of_the_manual()
    for name, field in table.model_json_schema()["properties"].items():
        bounds = field.get("anyOf", [field])[0]
        if "maximum" in bounds:
            least, most = bounds["minimum"], bounds["maximum"]
            shown = [format_size(each) if name in ("memory", "window") else str(each) for each in (least, most)]
            assert rows[name][1] == " to ".join(shown), name
        assert name in rows


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BLUE + "socket_group = 'no-such-group'\n", "tenants.blue.socket_group: unknown group 'no-such-group'"),
        ('[accelerator]\nlibrary = "x.so"\n' + BLUE, "accelerator.library: x.so is not an absolute path"),
        ('[accelerator]\nlibrary = "/no/x.so"\n' + BLUE, "accelerator.library: /no/x.so does not exist"),
    ],
)
def test_what_this_machine_does_not_have_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path, text if "accelerator" in text else LIBRARY + text) == said


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[tenants.a]\nweight = 0\n[tenants.b]\nweight = 0\n")
    assert "tenants.a.weight: " in said
    assert "tenants.b.weight: " in said


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[tenants", b"x" * (1 << 21)])
def test_what_is_no_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broker.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError):
        read(file)


def test_pocl_is_found_as_opencls_loader_finds_it(tmp_path: Path) -> None:
    (tmp_path / "vendors").mkdir()
    with pytest.raises(SettingsError, match=r"no library is set in \[accelerator\]"):
        pocl_library(tmp_path / "vendors", (str(tmp_path),))
    (tmp_path / "vendors/pocl.icd").write_text("libpocl.so.2\n")
    (tmp_path / "libpocl.so.2").touch()
    assert pocl_library(tmp_path / "vendors", ("/nowhere", str(tmp_path))) == tmp_path / "libpocl.so.2"


def test_with_pocl_the_accelerator_is_this_processes_processors(tmp_path: Path) -> None:
    library = tmp_path / "libpocl.so.2"
    library.touch()
    found = settings(tmp_path, f'[accelerator]\nlibrary = "{library}"\n{BLUE}')
    assert found["engine"]["processors"] == len(os.sched_getaffinity(0))
    found = settings(tmp_path, f'[accelerator]\nlibrary = "{library}"\nprocessors = 1\n{BLUE}')
    assert found["engine"]["processors"] == 1


def test_programs_are_the_checkouts_or_those_installed(tmp_path: Path) -> None:
    with pytest.raises(BrokerMissingError, match="make compute"):
        programs((tmp_path / "checkout", tmp_path / "installed"))
    for name in ("vgpu-broker", "vgpu-supervisor", "vgpu-child", "libvgpu-opencl.so"):
        (tmp_path / "installed").mkdir(exist_ok=True)
        (tmp_path / "installed" / name).touch()
    assert programs((tmp_path / "checkout", tmp_path / "installed")).broker == tmp_path / "installed/vgpu-broker"


def test_the_launcher_is_the_checkouts_or_the_one_installed(tmp_path: Path) -> None:
    with pytest.raises(BrokerMissingError, match=r"^vgpu-native is neither in .*make compute"):
        launcher((tmp_path / "checkout", tmp_path / "installed"))
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed/vgpu-native").touch()
    assert launcher((tmp_path / "checkout", tmp_path / "installed")) == tmp_path / "installed/vgpu-native"


def test_the_run_directory_is_the_users_own_or_the_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "user")}
    assert default_directory(env, root=tmp_path) == tmp_path / "user/vgpumgr-broker"
    assert default_directory({}, root=tmp_path) == tmp_path / "run/vgpumgr-broker"
    assert default_directory({"VGPUMGR_RUN_DIRECTORY": "/x"}, root=tmp_path) == Path("/x")
    (tmp_path / "run/vgpumgr-broker").mkdir(parents=True)
    assert find_directory(env, root=tmp_path) == tmp_path / "run/vgpumgr-broker"
    (tmp_path / "user/vgpumgr-broker").mkdir(parents=True)
    assert find_directory(env, root=tmp_path) == tmp_path / "user/vgpumgr-broker"
