# SPDX-License-Identifier: Apache-2.0
"""The host's role refuses settings that would expose the host's token or make the host look offline."""

import re
from pathlib import Path

import pytest
from vgpumgr_agent.config import load

from tests.api import playbooks
from vgpumgr.control import executor_settings

ROOT = Path(__file__).parents[2]
ROLE = ROOT / "ansible/roles/vgpumgr_host"
GOOD: dict[str, object] = {
    "vgpumgr_host_gpus": [],
    "vgpumgr_host_live": False,
    "vgpumgr_host_api_url": "https://api:8470",
    "vgpumgr_host_report_interval_s": 10,
    "vgpumgr_host_counters_interval_s": 60,
    "vgpumgr_host_metrics_directory": "",
    "vgpumgr_host_executor_programs": "",
    "vgpumgr_host_gpu_settings": {},
}
URL, REPORT_S, COUNTERS_S = (f"vgpumgr_host_{name}" for name in ("api_url", "report_interval_s", "counters_interval_s"))
WRONG: tuple[tuple[str, object], ...] = (
    *((URL, url) for url in ("http://10.0.0.1:8470", "http://127.0.0.1.example", "http://api")),
    *((REPORT_S, interval_s) for interval_s in (0.9, 31)),
    *((COUNTERS_S, interval_s) for interval_s in (0.5, 601)),
    ("vgpumgr_host_metrics_directory", "here"),
    ("vgpumgr_host_executor_programs", "/nowhere"),
)
RIGHT = (("", 1), ("http://127.0.0.1:8470", 30), ("http://[::1]:8470", 1.5), ("https://api", 10))
"""URLs, each with the agent's interval between reports."""


LENDS = {"0000:3b:00.0": {"engine": "lease"}}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the role's error for each of `WRONG` and `RIGHT`; "" if there is none."""
    cases = {f"{name} {value}": GOOD | {name: value} for name, value in WRONG}
    cases |= {f"{url} {interval_s}": GOOD | {URL: url, REPORT_S: interval_s} for url, interval_s in RIGHT}
    cases["lends without programs"] = GOOD | {"vgpumgr_host_gpu_settings": LENDS}
    cases["does not lend"] = GOOD | {"vgpumgr_host_gpu_settings": {"0000:3b:00.0": {"executor": {}}}}
    return playbooks.refused(ROLE / "tasks/check.yml", cases, tmp_path_factory.mktemp("check"))


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_what_is_wrong_is_named(refusals: dict[str, str], name: str, value: object) -> None:
    assert refusals[f"{name} {value}"].startswith(f"{name} is {value}")


def test_an_accelerator_that_lends_needs_programs(refusals: dict[str, str]) -> None:
    assert refusals["lends without programs"].startswith("vgpumgr_host_executor_programs is not set, and 0000:3b:00.0")
    assert refusals["does not lend"] == ""


@pytest.mark.parametrize(("url", "interval_s"), RIGHT)
def test_others_are_let(refusals: dict[str, str], url: str, interval_s: float) -> None:
    assert refusals[f"{url} {interval_s}"] == ""


def test_the_agent_reads_what_the_role_writes(tmp_path: Path) -> None:
    cases = {
        "nothing": {URL: "https://api"},
        "intervals": {
            URL: "https://api",
            REPORT_S: 3,
            COUNTERS_S: 30,
            "vgpumgr_host_metrics_directory": "/var/lib/prometheus/node-exporter",
        },
        "executors": {
            URL: "https://api",
            "vgpumgr_host_executor": {"library": "/lib/pocl.so", "tasks_max": 9},
            "vgpumgr_host_gpu_settings": {
                **LENDS,
                "0000:d8:00.0": {"executor": {"library": "/lib/nvidia.so"}},
                "0000:d9:00.0": {"workload": "process", "socket_group": "users", "executor": {"nvidia": 1}},
            },
        },
    }
    configs = {}
    for case, text in playbooks.written(
        ROLE / "templates/agent.toml.j2", ROLE / "defaults/main.yml", cases, tmp_path
    ).items():
        (tmp_path / "agent.toml").write_text(text)
        configs[case] = load(tmp_path / "agent.toml")
    found = configs["nothing"]
    assert (found.report_interval_s, found.counters_interval_s, found.metrics_file) == (10, 60, None)
    assert executor_settings.parse(found.model_dump()) == executor_settings.parse({})
    said = executor_settings.parse(configs["executors"].model_dump())
    lends, other = said.of("0000:3b:00.0"), said.of("0000:d8:00.0")
    assert (lends.engine, str(lends.executor.library), lends.executor.tasks_max) == ("lease", "/lib/pocl.so", 9)
    assert (other.engine, str(other.executor.library)) == ("", "/lib/nvidia.so")
    assert (said.for_processes(), said.of("0000:d9:00.0").socket_group) == ({"0000:d9:00.0"}, "users")
    found = configs["intervals"]
    assert (found.report_interval_s, found.counters_interval_s) == (3, 30)
    unit = (ROOT / "agent/systemd/vgpumgr-agent.service").read_text()
    directory = re.search(r"^RuntimeDirectory=(\S+)$", unit, re.M)
    assert directory is not None
    assert found.metrics_file is not None
    assert found.metrics_file.parent == Path("/run") / directory[1]
    tasks = (ROLE / "tasks/agent.yml").read_text()
    assert f"src: {found.metrics_file}" in tasks
