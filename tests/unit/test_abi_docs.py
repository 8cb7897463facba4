# SPDX-License-Identifier: Apache-2.0
"""docs/abi compared with the kernel modules: everything that they offer is described, and nothing else."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KMOD = ROOT / "kmod"
ABI = ROOT / "docs" / "abi"
SPEC: dict[str, Any] = yaml.safe_load((KMOD / "uapi" / "vgpumgr.yaml").read_text())
FIELDS = ("What", "Date", "KernelVersion", "Contact", "Description")
PLACES = {
    "vgpu_parent_attrs": "/sys/bus/pci/devices/<address>/vgpu/",
    "vgpu_device_attrs": "/sys/bus/mdev/devices/<uuid>/",
    "vgpu_node_attrs": "/sys/class/vgpu_guest/<node>/",
}


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(KMOD.glob("**/*.[ch]"))}


@cache
def entries() -> dict[str, str]:
    """Return the description of each path that docs/abi/testing names; several paths may share one."""
    found: dict[str, str] = {}
    for path in sorted((ABI / "testing").iterdir()):
        for entry in path.read_text().split("\n\nWhat:"):
            names, _, description = ("What:" + entry.removeprefix("What:")).partition("Description:\n")
            for name in re.findall(r"^What:\s+(\S+)$", names, re.M):
                assert name not in found, f"{name} is described twice"
                found[name] = description
    return found


def described(folder: str) -> set[str]:
    return {name for name in entries() if name.startswith(folder)}


def attributes() -> dict[str, str]:
    """Return the macro that makes each sysfs attribute, by the attribute's path."""
    made: dict[str, str] = {}
    for text in sources().values():
        for kind, name in re.findall(r"^(?:static )?DEVICE_ATTR_(\w+)\((\w+)\);", text, re.M):
            assert name not in made, f"two attributes {name}: this test cannot tell them apart"
            made[name] = kind
    found = {}
    for text in sources().values():
        for group, body in re.findall(r"static struct attribute \*(\w+)\[\] = \{(.*?)\}", text, re.S):
            for name in re.findall(r"&dev_attr_(\w+)\.attr", body):
                found[PLACES[group] + name] = made.pop(name)
    assert not made, "attributes that are in no group"
    return found


def parameters() -> dict[str, int]:
    """Return the mode of each module parameter, by its path."""
    found = {}
    for path, text in sources().items():
        module = "vgpu_guest" if path.parent.name == "guest" else "vgpumgr"
        for name, rest in re.findall(r"^module_param(?:_named|_cb)?\((\w+),\s*([^;]*?)\);", text, re.M):
            found[f"/sys/module/{module}/parameters/{name}"] = int(rest.split(",")[-1], 8)
    return found


def tracepoints() -> dict[str, str]:
    """Return what each tracepoint prints, by its path."""
    text = (KMOD / "trace.h").read_text()
    return {
        f"/sys/kernel/tracing/events/vgpu/{name}": printed
        for name, printed in re.findall(r'TRACE_EVENT\((\w+),.*?TP_printk\("([^"]*)"', text, re.S)
    }


def test_each_sysfs_attribute_is_described() -> None:
    assert {name for folder in PLACES.values() for name in described(folder)} == set(attributes())


@pytest.mark.parametrize("name", sorted(attributes()))
def test_a_description_says_who_may_write(name: str) -> None:
    expected = {"RW": r"\(RW\)", "RO": r"\(RO\)", "ADMIN_RW": r"\(RW, root only\)", "ADMIN_RO": r"\(RO, root only\)"}
    assert re.match(rf"\s*{expected[attributes()[name]]} ", entries()[name])


def test_each_module_parameter_is_described() -> None:
    assert described("/sys/module/") == set(parameters())
    for name, mode in parameters().items():
        assert re.match(r"\s*\(RW" if mode & 0o222 else r"\s*\(RO, set when", entries()[name]), name


def test_each_tracepoint_is_described_field_by_field() -> None:
    assert described("/sys/kernel/tracing/") == set(tracepoints())
    for name, printed in tracepoints().items():
        fields = re.findall(r"(\w+)=%", printed)
        assert re.findall(r"^\t\t([a-z_]+) {1,}\S", table_of(entries()[name]), re.M) == fields, name


def table_of(description: str) -> str:
    """Return the lines between the first and the last line of `=`."""
    return description.partition("===\n")[2].rpartition("\n\t\t===")[0]


def test_each_debugfs_file_is_described() -> None:
    calls = r'debugfs_create_(?:file|bool)\("(\w+)"'
    files = sorted(name for text in sources().values() for name in re.findall(calls, text))
    assert sorted(name.rpartition("/")[2] for name in described("/sys/kernel/debug/vgpumgr/")) == files


def test_nothing_else_is_described() -> None:
    known = {*attributes(), *parameters(), *tracepoints(), *described("/sys/kernel/debug/")}
    assert set(entries()) == known


@pytest.mark.parametrize("path", sorted((ABI / "testing").iterdir()), ids=lambda path: path.name)
def test_descriptions_have_the_form_of_the_kernels(path: Path) -> None:
    """The form is that of Documentation/ABI/README in the kernel."""
    for entry in path.read_text().split("\n\nWhat:"):
        fields = re.findall(r"^(\w+):", "What:" + entry.removeprefix("What:"), re.M)
        assert tuple(dict.fromkeys(fields)) == FIELDS, entry
        assert max(map(len, entry.expandtabs().splitlines())) <= 80, entry


def test_the_log_has_the_name_of_each_error() -> None:
    header = sources()[KMOD / "uapi" / "vgpu_device.h"]
    errors = [(name, int(value)) for name, value in re.findall(r"^\tVGPU_ERROR_(\w+) = (\d+),", header, re.M)]
    assert [value for _, value in errors] == list(range(len(errors)))
    assert re.findall(r'\[VGPU_ERROR_(\w+)\] = "(\w+)"', sources()[KMOD / "control/fault.c"]) == [
        (name, name.lower()) for name, _ in errors
    ]


def test_each_netlink_operation_is_one_of_the_module() -> None:
    text = "".join(sources().values())
    for operation in SPEC["operations"]["list"]:
        command = "VGPUMGR_CMD_" + operation["name"].upper().replace("-", "_")
        way = command if "event" in operation else rf"\.cmd = {command},"
        used = [path.name for path, text in sources().items() if re.search(rf"{way}\b|{way}$", text, re.M)]
        assert set(used) - {"vgpumgr_netlink.h"}, command
    served = set(re.findall(r"\.cmd = VGPUMGR_CMD_(\w+),", text))
    assert served == {
        operation["name"].upper().replace("-", "_") for operation in SPEC["operations"]["list"] if "do" in operation
    }


def test_each_netlink_attribute_is_used_by_the_module() -> None:
    text = "".join(text for path, text in sources().items() if path.name != "vgpumgr_netlink.h")
    for attribute_set in SPEC["attribute-sets"]:
        for attribute in attribute_set["attributes"]:
            name = (attribute_set["name-prefix"] + attribute["name"]).upper().replace("-", "_")
            assert re.search(rf"\b{name}\b", text), name


def test_every_operation_says_what_it_does() -> None:
    assert all(operation.get("doc") for operation in SPEC["operations"]["list"])


def test_the_page_about_netlink_is_made_from_the_specification() -> None:
    """If this fails: `docs/abi/render >docs/abi/netlink.md`."""
    made = subprocess.run([sys.executable, str(ABI / "render")], capture_output=True, text=True, check=True).stdout
    assert (ABI / "netlink.md").read_text() == made
