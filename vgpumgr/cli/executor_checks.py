# SPDX-License-Identifier: Apache-2.0
"""The checks of `host doctor` for GPUs with the engine `lease`: settings, programs, library, device, unit, cgroups."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from vgpumgr.cli.checks import Finding, fail, ok, warn
from vgpumgr.cli.privilege import to_be_permitted
from vgpumgr.control.executor_settings import (
    LENDING,
    PROGRAMS,
    ExecutorSettings,
    ExecutorSettingsError,
    HostSettings,
    load,
)
from vgpumgr.control.sysfs import HostPaths, Sysfs
from vgpumgr.errors import VgpumgrError

DEVICE = Path("dev/vgpumgr-exec")
TEMPLATE = "vgpumgr-executor@.service"
UNITS = (Path("etc/systemd/system"), Path("usr/lib/systemd/system"), Path("lib/systemd/system"))
CGROUPS = Path("sys/fs/cgroup/cgroup.controllers")
TRY_S = 90.0
_REASON_CHARACTERS = 200


def executors(root: Path) -> Iterator[Finding]:
    """Check that VMs get executors; report nothing if no GPU has that engine or is configured to have it."""
    sysfs = Sysfs(HostPaths(root))
    try:
        settings = load(sysfs.paths.agent_settings)
    except ExecutorSettingsError as error:
        yield fail(
            "executors", str(error), "correct it; until then VMs with slices of GPUs with engine lease do not start"
        )
        return
    gpus = list(_lending(sysfs, settings))
    if not gpus:
        return
    yield from _host(root)
    for gpu, engine in gpus:
        wanted = settings.of(gpu).engine
        if wanted and engine != wanted:
            todo = "stop the VMs that use it, and unbind it from vgpumgr once; the agent binds it again"
            yield fail(f"engine {gpu}", f"{engine}, but {sysfs.paths.agent_settings} asks for {wanted}", todo)
            continue
        yield ok(f"engine {gpu}", engine)
        yield _executor(root, gpu, settings.of(gpu).executor, sysfs.paths.agent_settings)


def _lending(sysfs: Sysfs, settings: HostSettings) -> Iterator[tuple[str, str]]:
    """Return the GPUs that have the engine `lease` or are configured to have it, each with its present engine."""
    try:
        gpus = sysfs.gpus()
    except VgpumgrError:  # another check reports this
        return
    for gpu in gpus:
        try:
            engine = sysfs.read_gpu(gpu, "engine")
        except VgpumgrError:  # this module has one engine only
            engine = "the module's only one"
        if LENDING in (engine, settings.of(gpu).engine):
            yield gpu, engine


def _host(root: Path) -> Iterator[Finding]:
    if not (root / DEVICE).exists():
        yield fail("executor device", f"/{DEVICE} is missing", "load the vgpumgr.ko of this release")
    if (root / "run/systemd/system").is_dir() and not any((root / path / TEMPLATE).exists() for path in UNITS):
        yield fail("executor unit", f"{TEMPLATE} is not installed", "install it with the role")
    if (root / CGROUPS).exists():
        yield ok("executor cgroups", "the unified hierarchy")
    else:
        found = "no unified hierarchy, so the memory of a tenant's programs has no common limit"
        yield warn("executor cgroups", found, "boot with systemd.unified_cgroup_hierarchy=1")


def _executor(root: Path, gpu: str, settings: ExecutorSettings, where: Path) -> Finding:
    check = f"executor {gpu}"
    if settings.library is None:
        return fail(
            check, f"{where} does not name a library", "set executor.library to the accelerator's OpenCL library"
        )
    for path in (*(settings.directory / name for name in PROGRAMS), settings.library):
        if not _below(root, path).exists():
            todo = "install it" if path == settings.library else "`make -C compute install-executor`, or the role"
            return fail(check, f"{path} is missing", todo)
    refusal = _refusal(root, settings)
    if refusal is None:
        return ok(check, f"a child can serve with {settings.library}")
    if os.geteuid():
        return warn(check, f"not checked: {refusal}", to_be_permitted())
    return fail(check, refusal, f"`{settings.program} --check --library {settings.library}` shows more")


def _refusal(root: Path, settings: ExecutorSettings) -> str | None:
    """Return why no executor can run, None if one can. The programs test this themselves."""
    command = [str(_below(root, settings.program)), "--check", *settings.options()]
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=TRY_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{settings.program} did not answer: {type(error).__name__}"
    if not tried.returncode:
        return None
    lines = tried.stderr.strip().splitlines()
    said = lines[-1].strip() if lines else f"{settings.program} exits with {tried.returncode}"
    return said[:_REASON_CHARACTERS]


def _below(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")
