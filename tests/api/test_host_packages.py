# SPDX-License-Identifier: Apache-2.0
"""The headers that the host's role installs: for the running kernel, and for the next ones of its flavour's package."""

from pathlib import Path
from typing import Any

import pytest

from tests.api import playbooks

VARIABLES = Path(__file__).parents[2] / "ansible/roles/vgpumgr_host/vars/main.yml"
FLAVOURS = {
    "6.1.0-40-amd64": "amd64",
    "6.1.0-40-cloud-amd64": "cloud-amd64",
    "6.12.48+deb13-amd64": "amd64",
    "6.12.48+deb13-rt-amd64": "rt-amd64",
    "6.1.0-0.deb11.21-arm64": "arm64",
}


def case(kernel: str, *, headers: bool, image: str) -> dict[str, Any]:
    """A host that runs a kernel; `image`: dpkg's record of the package that brings its flavour's next kernels."""
    return {
        "vgpumgr_host_kernel": kernel,
        "vgpumgr_host_headers": {"stat": {"exists": headers}},
        "vgpumgr_host_image": {"stdout": image},
    }


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    directory = tmp_path_factory.mktemp("packages")
    template = directory / "packages.j2"
    template.write_text("{{ vgpumgr_host_packages | join(' ') }}")
    cases = {kernel: case(kernel, headers=False, image="installed") for kernel in FLAVOURS}
    cases["there"] = case("6.12.48+deb13-amd64", headers=True, image="installed")
    cases["own"] = case("6.12.48-lockdep", headers=True, image="")
    cases["removed"] = case("6.12.48+deb13-amd64", headers=True, image="config-files")
    found = playbooks.written(template, VARIABLES, cases, directory)
    return {name: [each for each in text.split() if each.startswith("linux-")] for name, text in found.items()}


@pytest.mark.parametrize("kernel", FLAVOURS)
def test_headers_of_later_kernels_of_the_flavour_come_along(packages: dict[str, list[str]], kernel: str) -> None:
    assert packages[kernel] == [f"linux-headers-{kernel}", f"linux-headers-{FLAVOURS[kernel]}"]


def test_also_where_the_running_kernels_are_there(packages: dict[str, list[str]]) -> None:
    assert packages["there"] == ["linux-headers-amd64"]


@pytest.mark.parametrize("name", ["own", "removed"])
def test_not_where_no_package_brings_new_kernels(packages: dict[str, list[str]], name: str) -> None:
    assert packages[name] == []
