# SPDX-License-Identifier: Apache-2.0
"""What `vgpumgr-oci` writes into a container's files, and what it refuses. The runtime only prints its arguments."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.oci_rig import BEFORE, UVM_MAJOR, Host, configuration, make_bundle, make_saying_runtime
from vgpumgr.broker import places as places_module
from vgpumgr.oci import host as host_module
from vgpumgr.oci import main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="it makes device nodes, which takes root")

Change = Callable[[dict[str, Any]], None]


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


@pytest.fixture
def create(
    host: Host, runtime: str, tmp_path: Path
) -> Callable[[dict[str, Any]], tuple[subprocess.CompletedProcess[str], dict[str, Any]]]:
    """Create a container. Returns the output and the resulting configuration."""

    def create(config: dict[str, Any]) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        bundle = tmp_path / "bundle"
        if not bundle.exists():
            make_bundle(bundle, config)
        (bundle / "config.json").write_text(json.dumps(config))
        result = host.call("--root", "r", "create", "--bundle", str(bundle), "c", cwd=tmp_path, runtime=runtime)
        return result, json.loads((bundle / "config.json").read_text())

    return create


Create = Callable[[dict[str, Any]], tuple[subprocess.CompletedProcess[str], dict[str, Any]]]


# ---- written configurations


def test_a_container_without_our_annotation_is_left_alone(create: Create, tmp_path: Path) -> None:
    config = configuration("/bin/true")
    config["annotations"] = {"org.example/x": "vgpumgr.io/tenant"}
    config["hooks"] = {"startContainer": [{"path": "/bin/x"}]}
    result, written = create(config)
    assert (result.stdout, result.returncode) == (f"--root r create --bundle {tmp_path}/bundle c\n", 0)
    assert written == config


def test_a_tenants_container_has_launcher_socket_and_its_gpu(create: Create, host: Host) -> None:
    config = configuration("/bin/train", "--fast", tenant="blue")
    result, written = create(config)
    assert result.returncode == 0, result.stderr
    assert written["process"]["args"] == [*BEFORE, "/bin/train", "--fast"]
    assert written["process"]["env"] == ["PATH=/usr/sbin:/usr/bin", "LD_LIBRARY_PATH=/.vgpumgr/lib"]
    mounts = {each["destination"]: each for each in written["mounts"][3:]}
    assert list(mounts) == ["/.vgpumgr", "/.vgpumgr/native", "/.vgpumgr/tenant.sock"]
    assert mounts["/.vgpumgr"]["type"] == "tmpfs"
    assert mounts["/.vgpumgr/native"]["source"] == str(host.programs / "vgpu-native")
    assert mounts["/.vgpumgr/tenant.sock"]["source"] == str(host.run / "blue.sock")
    assert [(each["path"], each["major"], each["minor"]) for each in written["linux"]["devices"]] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", UVM_MAJOR, 0),
        ("/dev/nvidia0", 195, 0),
    ]
    rules = written["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert {(each["major"], each["minor"], each["access"]) for each in rules[1:]} == {
        (195, 255, "rw"),
        (UVM_MAJOR, 0, "rw"),
        (195, 0, "rw"),
    }


def test_a_bundle_can_be_started_again(create: Create) -> None:
    _, once = create(configuration("/bin/true", tenant="blue"))
    result, again = create(once)
    assert result.returncode == 0, result.stderr
    assert again == once


def test_the_drivers_libraries_are_found_after_those_of_the_image(create: Create, host: Host) -> None:
    host.cache.write_text(
        "4 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibcudart.so.12 (libc6,x86-64) => /usr/lib/libcudart.so.12\n"
        "\tlibnvidia-gpucomp.so.580.95.05 (libc6,x86-64) => /usr/lib/libnvidia-gpucomp.so.580.95.05\n"
    )
    config = configuration("/bin/true", tenant="blue")
    config["process"]["env"] = ["LD_LIBRARY_PATH=/opt/lib"]
    _, written = create(config)
    assert [(each["destination"], each["source"]) for each in written["mounts"][6:]] == [
        ("/.vgpumgr/lib/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        ("/.vgpumgr/lib/libnvidia-gpucomp.so.580.95.05", "/usr/lib/libnvidia-gpucomp.so.580.95.05"),
    ]
    assert written["process"]["env"] == ["LD_LIBRARY_PATH=/opt/lib:/.vgpumgr/lib"]


def test_of_two_gpus_the_annotation_says_which(host: Host, create: Create) -> None:
    host.make_node("nvidia1", 195, 1)
    host.broker("second", 1, "blue", "green")
    (host.root / "etc/vgpumgr").mkdir(parents=True)
    (host.root / "etc/vgpumgr/oci.toml").write_text('run_directories = ["/run/vgpumgr-broker", "/run/second"]\n')
    result, _ = create(configuration("x", tenant="blue"))
    assert "tenant blue has the GPUs 0, 1; choose one with the annotation vgpumgr.io/gpu" in result.stderr
    for named, minor in (({"tenant": "blue", "gpu": "1"}, 1), ({"tenant": "green"}, 1), ({"tenant": "red"}, 0)):
        result, written = create(configuration("x", **named))
        assert written["linux"]["devices"][-1]["minor"] == minor, result.stderr
    result, _ = create(configuration("x", tenant="blue", gpu="2"))
    assert "vgpumgr.io/gpu is 2, and no broker shares /dev/nvidia2" in result.stderr


# ---- refused configurations


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"tenant": "../blue"}, "container.refused: vgpumgr.io/tenant is '../blue', which is not a tenant's name"),
        ({"tenant": ""}, "container.refused: vgpumgr.io/tenant is '', which is not a tenant's name"),
        ({"tenant": "blue\n"}, "container.refused: vgpumgr.io/tenant is 'blue\\n', which is not a tenant's name"),
        ({"tenant": "green"}, "object.unknown: the broker in "),
        ({"tenant": "blue", "gpu": "32"}, "container.refused: vgpumgr.io/gpu is '32', and must be the N"),
        ({"gpu": "0"}, "container.refused: vgpumgr.io/gpu needs vgpumgr.io/tenant"),
        ({"tenant": "blue", "tenat": "x"}, "container.refused: unknown annotation 'vgpumgr.io/tenat'"),
    ],
)
def test_annotations_that_make_no_sense_are_refused(create: Create, annotations: dict[str, str], said: str) -> None:
    config = configuration("/bin/true", **annotations)
    result, written = create(config)
    assert (result.returncode, result.stdout, written) == (1, "", config)
    assert result.stderr.startswith(f"vgpumgr: {said}")
    assert result.stderr.count("\n") == 1


def put(path: str, value: object) -> Change:
    """Set one value of a configuration."""

    def change(config: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            config = config.setdefault(name, {})
        config[last] = value

    return change


def add(path: str, value: object) -> Change:
    def change(config: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            config = config.setdefault(name, {})
        config.setdefault(last, []).append(value)

    return change


def mount(place: str) -> Change:
    return add("mounts", {"destination": place, "type": "bind", "source": "/tmp", "options": ["bind"]})


def allow(**rule: object) -> Change:
    return add("linux.resources.devices", {"allow": True, **rule})


def annotate(name: str) -> Change:
    return lambda config: config["annotations"].update({name: "x"})


def namespaces(*found: dict[str, str]) -> Change:
    return put("linux.namespaces", list(found))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (mount("/.vgpumgr"), "a mount at '/.vgpumgr' would hide the launcher"),
        (mount("/.vgpumgr/native"), "a mount at '/.vgpumgr/native' would hide"),
        (mount("//x/../.vgpumgr/lib/"), "a mount at '//x/../.vgpumgr/lib/' would hide"),
        (mount(".vgpumgr"), "a mount at '.vgpumgr' would hide"),
        (mount("/"), "a mount at '/' would hide"),
        (mount("/x/.."), "a mount at '/x/..' would hide"),
        (put("hooks", {"startContainer": [{"path": "/x"}]}), "hooks.startContainer would run in the container"),
        (
            put("hooks", {"poststart": None, "prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}),
            "the hook /usr/bin/nvidia-container-runtime-hook would add devices",
        ),
        (put("process.args", []), "process.args must be a list of texts"),
        (put("process.args", [1]), "process.args must be a list of texts"),
        (put("process", None), "config.json has no process"),
        (put("process.env", "x"), "process.env must be a list of texts"),
        (
            put("process.capabilities.effective", ["CAP_SYS_ADMIN"]),
            "a process could bypass the fence with CAP_SYS_ADMIN;",
        ),
        (
            put("process.capabilities.ambient", ["cap_sys_ptrace"]),
            "a process could bypass the fence with CAP_SYS_PTRACE;",
        ),
        (put("process.capabilities", ["CAP_KILL"]), "process.capabilities do not follow the OCI specification"),
        (put("process.user", {"uid": 1000, "gid": 1000}), "is user 1000 of the host, who may not use tenant blue"),
        (put("process.user", {"uid": "root"}), "process.user: uid must be a number"),
        (put("linux", None), "config.json is not for a Linux container"),
        (put("windows", {"x": 1}), "windows: only Linux containers can have a GPU"),
        (put("mounts", "x"), "mounts must be a list of tables"),
        (namespaces({"type": "mount"}), "no pid namespace of its own"),
        (namespaces({"type": "mount"}, {"type": "pid", "path": "/proc/1/ns/pid"}), "no pid namespace of its own"),
        (namespaces({"type": "mount", "path": "/x"}, {"type": "pid"}), "no mount namespace of its own"),
        (
            namespaces({"type": "mount"}, {"type": "pid"}, {"type": "user", "path": "/x"}),
            "the container shares another's user namespace",
        ),
        (allow(), "linux.resources.devices would open devices that are not tenant blue's"),
        (allow(type="c", access="rw"), "linux.resources.devices would open devices"),
        (allow(type="c", major=195, access="r"), "linux.resources.devices would open devices"),
        (allow(type="c", major=195, minor=1, access="rwm"), "linux.resources.devices would open devices"),
        (allow(type="c", major=236, minor=1, access="rw"), "linux.resources.devices would open devices"),
        (
            add("linux.devices", {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1}),
            "linux.devices has '/dev/nvidia1', which is not of tenant blue's GPU",
        ),
        (
            add("linux.devices", {"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3}),
            "linux.devices has '/dev/nvidia0'",
        ),
        (
            put("linux.seccomp", {"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}),
            "another program answer system calls",
        ),
        (
            put(
                "linux.seccomp",
                {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["x"], "action": "SCMP_ACT_NOTIFY"}]},
            ),
            "another program answer system calls",
        ),
        (annotate("run.oci.handler"), "the annotation 'run.oci.handler' would make the runtime deviate"),
        (annotate("run.oci.seccomp_bpf_data"), "the annotation 'run.oci.seccomp_bpf_data' would make"),
        (annotate("org.systemd.property.DevicePolicy"), "the annotation 'org.systemd.property.DevicePolicy' would"),
        (put("linux.maskedPaths", ["/proc/kcore", "/.vgpumgr/native"]), "linux.maskedPaths has '/.vgpumgr/native'"),
        (put("process.user", {"additionalGids": 3}), "a file of the container does not follow the OCI specification"),
        (put("linux.seccomp", {"syscalls": []}), "linux.seccomp does not follow the OCI specification"),
    ],
)
def test_a_container_that_could_get_around_the_fence_is_refused(create: Create, change: Change, said: str) -> None:
    config = configuration("/bin/true", tenant="blue")
    change(config)
    result, written = create(config)
    assert (result.returncode, result.stdout, written) == (1, "", config)
    assert result.stderr.startswith("vgpumgr: container.refused: ")
    assert said in result.stderr


@pytest.mark.parametrize("kind", ["link", "file"])
def test_an_image_has_no_name_of_ours_that_it_could_replace(create: Create, tmp_path: Path, kind: str) -> None:
    bundle = make_bundle(tmp_path / "bundle", configuration("/bin/true", tenant="blue"))
    if kind == "link":
        (bundle / "rootfs/.vgpumgr").symlink_to("tmp")
    else:
        (bundle / "rootfs/.vgpumgr").touch()
    result, _ = create(configuration("/bin/true", tenant="blue"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "the image has a /.vgpumgr that is not a directory" in result.stderr


def test_a_runtime_that_adds_devices_is_refused(host: Host, runtime: str, tmp_path: Path) -> None:
    adding = Path(runtime).rename(tmp_path / "nvidia-container-runtime.cdi")
    make_bundle(tmp_path / "b", configuration("/bin/true", tenant="blue"))
    result = host.call("create", "--bundle", "b", "c", cwd=tmp_path, runtime=str(adding))
    assert (result.returncode, result.stdout) == (1, "")
    assert "nvidia-container-runtime.cdi would add devices; name runc or crun" in result.stderr


def test_rules_that_engines_have_by_themselves_are_kept(create: Create) -> None:
    config = configuration("/bin/true", tenant="blue")
    usual = [
        {"allow": True, "type": "c", "access": "m"},
        {"allow": True, "type": "b", "access": "m"},
        {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
    ]
    config["linux"]["resources"]["devices"] = list(usual)
    result, written = create(config)
    assert result.returncode == 0, result.stderr
    assert written["linux"]["resources"]["devices"][:4] == [{"allow": False, "access": "rwm"}, *usual]


def test_what_is_missing_on_the_host_is_said(create: Create, host: Host) -> None:
    config = configuration("/bin/true", tenant="blue")
    (host.root / "dev/nvidia-uvm").unlink()
    assert "nvidia-uvm: no such file or directory; `nvidia-modprobe -u -c 0` loads" in create(config)[0].stderr
    (host.programs / "vgpu-native").unlink()
    assert "vgpumgr: broker.missing: vgpu-native is neither in" in create(config)[0].stderr
    (host.programs / "vgpu-native").touch()
    (host.run / "blue.sock").unlink()
    assert "vgpumgr: object.unknown: the broker in" in create(config)[0].stderr
    (host.run / "control").unlink()
    assert "vgpumgr: broker.unreachable: " in create(config)[0].stderr
    (host.run / "nvidia").unlink()
    assert "vgpumgr: container.refused: no broker with `nvidia = N` has the run directory" in create(config)[0].stderr


# ---- system calls that could replace the launcher


def _operands(rule: dict[str, Any]) -> list[int]:
    return [each[name] for each in rule.get("args", []) for name in ("value", "valueTwo")]


@pytest.mark.parametrize("default", ["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"])
def test_mounts_and_namespaces_are_taken_from_a_filter(create: Create, default: str) -> None:
    config = configuration("/bin/true", tenant="blue")
    allowed = {"names": ["mount", "read", "unshare", "clone"], "action": "SCMP_ACT_ALLOW"}
    config["linux"]["seccomp"] = {"defaultAction": default, "syscalls": [allowed, {**allowed, "names": ["setns"]}]}
    _, written = create(config)
    rules = written["linux"]["seccomp"]["syscalls"]
    assert rules[0] == {"names": ["read"], "action": "SCMP_ACT_ALLOW"}
    assert {"mount", "setns", "unshare", "umount2"} < set(rules[1]["names"])
    assert (rules[1]["action"], rules[2]["names"], rules[2]["errnoRet"]) == ("SCMP_ACT_ERRNO", ["clone3"], 38)
    clones = [(each["action"], *_operands(each)) for each in rules[3:5]]
    if default == "SCMP_ACT_ALLOW":
        assert clones == [("SCMP_ACT_ERRNO", flag, flag) for flag in (0x20000, 0x10000000)]
    else:
        assert clones == [("SCMP_ACT_ALLOW", 0x10020000, 0), ("SCMP_ACT_ALLOW",)]
        assert all(name.startswith("landlock_") for name in rules[4]["names"])


# ---- arbitrary file contents


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The path to each value of a configuration."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from places(child, *path, name)


def with_value(config: Any, path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    found = json.loads(json.dumps(config))
    parent = found
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = value
    return found


def test_any_value_anywhere_is_fenced_or_refused(
    host: Host, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hundreds of cases run in this process to save time."""
    became: list[str] = []
    monkeypatch.setattr(places_module, "CHECKOUT", host.programs)
    monkeypatch.setattr(host_module, "loader_cache", str)
    monkeypatch.setattr(os, "execve", lambda path, *_: became.append(path))
    whole = configuration("/bin/true", tenant="blue")
    whole["hooks"] = {"prestart": [{"path": "/x"}]}
    whole["linux"] |= {
        "devices": [{"path": "/dev/x", "type": "c", "major": 1, "minor": 3}],
        "uidMappings": [],
        "maskedPaths": ["/proc/kcore"],
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["x"], "action": "SCMP_ACT_ALLOW"}]},
    }
    bundle = make_bundle(tmp_path / "bundle", whole)
    env = {"VGPUMGR_OCI_RUNTIME": runtime}
    fenced = refused = 0
    for path in places(whole):
        value: object
        for value in (None, True, -1, "x", "/", [], [1], {}, {"a": 1}, [[]], [{}]):
            config = with_value(whole, path, value)
            (bundle / "config.json").write_text(json.dumps(config))
            became.clear()
            main.main(["create", "--bundle", str(bundle), "c"], env, root=host.root)
            said = capsys.readouterr().err
            written = json.loads((bundle / "config.json").read_text())
            if became and written != config:
                assert written["process"]["args"][:5] == BEFORE, (path, value)
                fenced += 1
            elif became:  # the configuration has no annotation of ours
                assert path[:1] in ((), ("annotations",)), (path, value)
            else:
                assert said.startswith("vgpumgr: "), (path, value)
                assert said.count("\n") == 1, (path, value)
                refused += 1
    assert fenced > 100
    assert refused > 300
