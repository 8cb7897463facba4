# SPDX-License-Identifier: Apache-2.0
"""The hook in an environment that does not help: hostile variables, closed descriptors, a broken installation."""

import subprocess
import sys

import pytest
from vgpumgr_agent.hook.server import HookServer

from tests.agent.hook.rig import HOOK, SLICE, FakeService, Host, domain, hostdev, metadata

OURS = domain(hostdev(), metadata(SLICE))


def run_as_is(
    host: Host, arguments: str, stdin: bytes = OURS.encode(), **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the front from a shell, which can close descriptors first."""
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {host.front} guest {arguments}"],
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
        env=environ,
        cwd=host.root,
    )


def test_nothing_in_the_environment_changes_the_decision(host: Host, agent: HookServer, service: FakeService) -> None:
    bad = host.root / "bad"
    bad.mkdir()
    for name in ("head", "cat", "python3", "printf"):
        (bad / name).write_text("#!/bin/sh\nexit 0\n")
        (bad / name).chmod(0o755)
    for place in (bad, host.root):
        (place / "json.py").write_text("raise SystemExit(0)\n")
        (place / "sitecustomize.py").write_text("raise SystemExit(0)\n")
    service.refuse("claim.none", "no claim")
    hostile = {
        "PATH": str(bad),
        "PYTHONPATH": str(bad),
        "PYTHONHOME": "/nonexistent",
        "PYTHONSTARTUP": str(bad / "json.py"),
        "LC_ALL": "xx_XX.nonsense",
        "LANG": "tr_TR.UTF-8",
        "IFS": "mdev",
        "ENV": str(bad / "head"),
        "BASH_ENV": str(bad / "head"),
        "READ_BYTES": "1",
        "PYTHON": "/bin/true",
        "CLIENT": "/dev/null",
        "veto": "",
        "ask": "",
    }
    done = run_as_is(host, "prepare begin -", **hostile)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"no claim (vgpumgr: claim.none)\n")
    done = run_as_is(host, "prepare begin -", domain().encode(), **{**hostile, "veto": "1", "ask": "1"})
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&-", ">/dev/full", ">&- 2>&-"])
def test_a_refusal_that_nobody_can_read_is_still_one(
    host: Host, agent: HookServer, service: FakeService, redirection: str
) -> None:
    service.refuse("claim.none", "no claim")
    assert run_as_is(host, f"prepare begin - {redirection}").returncode == 1
    assert run_as_is(host, f"reconnect begin - {redirection}").returncode == 0
    service.refusal = None
    assert run_as_is(host, f"prepare begin - {redirection}").returncode == 0


def test_without_xml_nothing_of_ours_can_pass(host: Host) -> None:
    assert run_as_is(host, "prepare begin - <&-").returncode == 1
    assert run_as_is(host, "reconnect begin - <&-").returncode == 0
    cut = OURS[: OURS.index("</devices>")].encode()
    assert run_as_is(host, "prepare begin -", cut).returncode == 1
    assert run_as_is(host, "reconnect begin -", cut).returncode == 0


def test_names_are_data(host: Host, agent: HookServer, service: FakeService) -> None:
    name = "$(touch x) `id` ; \" ' \\ \N{SNOWMAN} -x"
    assert host.call("prepare", OURS, name=name) == (0, "")
    assert service.calls[0]["domain"] == name
    assert not (host.root / "x").exists()


@pytest.mark.parametrize("missing", ["python", "client"])
def test_a_broken_installation_is_named(host: Host, missing: str) -> None:
    if missing == "python":
        host.install(python="/nonexistent/python3")
    else:
        (host.root / "client.py").unlink()
    status, stderr = host.call("prepare", OURS)
    assert status == 1
    assert stderr.endswith("is missing; install vgpumgr again (vgpumgr: hook.broken)\n")
    assert host.call("prepare", domain()) == (0, "")
    assert host.call("reconnect", OURS) == (0, "")


def test_an_error_of_the_client_itself_is_no_traceback(host: Host) -> None:
    host.install(CONNECT_S="no number")  # type: ignore[arg-type]
    status, stderr = host.call("prepare", OURS)
    assert status == 1
    assert stderr == "the hook failed (TypeError): report it with the VM's XML (vgpumgr: hook.broken)\n"


def test_the_client_imports_nothing_slow() -> None:
    """Each of these costs milliseconds at every start of a VM."""
    done = subprocess.run(
        [sys.executable, "-IS", "-X", "importtime", str(HOOK / "hook_client.py"), "guest", "start"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "json" in imported
    assert (
        imported & {"typing", "dataclasses", "pathlib", "logging", "argparse", "uuid", "xml.etree.ElementTree"} == set()
    )
