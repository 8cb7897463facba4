# SPDX-License-Identifier: Apache-2.0
"""Rules for every file of the tree: licences, no traces of one machine, imports."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOURCE_SUFFIXES = {
    ".c", ".cfg", ".conf", ".css", ".h", ".html", ".ini", ".js", ".mk", ".py", ".rules", ".S",
    ".service", ".sh", ".socket", ".sql", ".toml", ".yaml", ".yml",
}  # fmt: skip
SOURCE_NAMES = {"Kbuild", "Kconfig", "Makefile", ".gitignore"}

CORE_LICENCES = {"GPL-2.0 OR MIT"}
MODULE_LICENCES = {
    "GPL-2.0",
    "GPL-2.0 OR MIT",
    "(GPL-2.0 WITH Linux-syscall-note) OR MIT",
    # the form that the kernel's own tools expect in a YNL specification
    "((GPL-2.0 WITH Linux-syscall-note) OR MIT)",
}
OTHER_LICENCES = {"Apache-2.0"}

# The hosts that a file may name: those of standards and documentation. Package sources are not among them, because they
# are settings of the machine.
DOCUMENTATION_HOSTS = {
    "vgpumgr.dev",  # part of our XML namespace's name; nothing is fetched from it
    "www.apache.org",
    "www.gnu.org",
    "www.kernel.org",
    "docs.kernel.org",
    "git.kernel.org",
    "lore.kernel.org",
    "github.com",
    "gitlab.com",
    "www.qemu.org",
    "libvirt.org",
    "peps.python.org",
    "docs.openstack.org",
    "html.spec.whatwg.org",
    "docs.python.org",
    "www.rfc-editor.org",
    "json-schema.org",
    "doi.org",
    "en.wikipedia.org",
}


@cache
def tree() -> tuple[Path, ...]:
    """Return tracked and new files, relative to the root: the content of a commit of everything."""
    listed = subprocess.run(
        [
            "git",
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return tuple(sorted({Path(name) for name in listed if name and (ROOT / name).is_file()}))


def texts() -> Iterator[tuple[Path, str]]:
    for path in tree():
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            yield path, data.decode()


def is_source(path: Path, text: str) -> bool:
    return path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES or text.startswith("#!")


def licences_for(path: Path) -> set[str]:
    if path.parts[:2] == ("kmod", "sched") or path.match("tests/bench/kmod/pickers/*.c"):
        return CORE_LICENCES
    # `client` and `exercise` are linked with kmod/guest's tool, the fuzzer with the module, and the others with a
    # kernel
    linked = (
        path.parts[:3] in {("tests", "kmod", name) for name in ("client", "defects", "exercise", "vendor")}
        or path.match("tests/kfuzz/*.[ch]")
        or path.match("tests/kmod/selftests/*.c")
        or path.match("tests/lab/kernels/uml/*.c")
    )
    if path.parts[0] == "kmod" or path.parts[:2] == ("compute", "protocol") or linked:
        return MODULE_LICENCES
    return OTHER_LICENCES


def spdx(text: str) -> str | None:
    """Return the licence expression in the first lines, without the end of the comment."""
    for line in text.splitlines()[:3]:
        if found := re.search(r"SPDX-License-Identifier:\s*(.*?)\s*(\*/|-->)?$", line):
            return found[1]
    return None


def test_every_source_file_names_the_licence_of_its_directory() -> None:
    wrong = {
        str(path): spdx(text)
        for path, text in texts()
        if text.strip() and is_source(path, text) and spdx(text) not in licences_for(path)
    }
    assert wrong == {}


def test_licence_texts_stand_where_they_apply() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "GNU GENERAL PUBLIC LICENSE" in (ROOT / "kmod/COPYING").read_text()
    assert "MIT License" in (ROOT / "kmod/sched/LICENSE-MIT").read_text()


def test_no_file_names_a_host_that_serves_packages() -> None:
    named = {
        (str(path), host)
        for path, text in texts()
        for host in re.findall(r"(?:https?|ftp|ssh|git)://([\w.-]+\.[a-z]{2,})", text)
        if host not in DOCUMENTATION_HOSTS and not host.endswith((".example", ".invalid", ".test"))
    }
    assert named == set()


def test_lock_leaves_the_choice_of_an_index_to_the_machine() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    options = [line for line in lines if line.startswith("-") or "@" in line.split("#")[0]]
    assert options == []
    assert not any("://" in line for line in lines)


def test_lock_pins_every_requirement_by_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    pins = [line for line in lock.splitlines() if line and not line.lstrip().startswith("#")]
    assert pins
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []


@pytest.mark.parametrize(("role", "extras"), [("vgpumgr_host", ("agent",)), ("vgpumgr_api", ("api", "otel"))])
def test_a_role_installs_all_that_its_settings_can_switch_on(role: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    lock = (ROOT / f"ansible/roles/{role}/files/requirements.lock").read_text()
    pinned = set(re.findall(r"^([\w.-]+)==", lock, re.M))
    assert {re.split(r"[^\w.-]", each)[0] for each in wanted} <= pinned


def test_no_file_names_the_place_of_a_checkout() -> None:
    standard = {
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root",
        "run", "sbin", "srv", "sys", "tmp", "usr", "var",
    }  # fmt: skip
    places = {str(ROOT)}
    if ROOT.parts[1] not in standard:
        places.add(f"/{ROOT.parts[1]}/")
    found = {
        (str(path), place)
        for path, text in texts()
        for place in places
        if re.search(rf"(?<![\w.~*}}-]){re.escape(place)}", text)
    }
    assert found == set()


def test_version_has_one_source() -> None:
    import vgpumgr

    assert vgpumgr.__version__ == (ROOT / "kmod/VERSION").read_text().strip()


@pytest.mark.parametrize("conf", ["kmod/dkms.conf", "kmod/guest/dkms.conf"])
def test_dkms_conf_says_the_version_in_a_form_that_dh_dkms_reads(conf: str) -> None:
    """This is the only copy of the version: dh_dkms and similar tools read the text and run no shell."""
    found = re.findall(r"""^PACKAGE_VERSION=(["'])(.*)\1$""", (ROOT / conf).read_text(), re.M)
    assert [version for _, version in found] == [(ROOT / "kmod/VERSION").read_text().strip()]


# The rule of pyproject.toml, the importer, and the imported module.
FORBIDDEN_IMPORTS = [
    ("api and agent import vgpumgr, never each other", "vgpumgr_api.errors", "vgpumgr_agent"),
    ("api and agent import vgpumgr, never each other", "vgpumgr_agent.files", "vgpumgr_api"),
    ("api and agent import vgpumgr, never each other", "vgpumgr.errors", "vgpumgr_api"),
    ("api and agent import vgpumgr, never each other", "vgpumgr.errors", "vgpumgr_agent"),
    ("of the product only the simulator", "vgpumgr.errors", "vgpumgr.sched"),
    ("what serves uses what is shared", "vgpumgr_agent.files", "vgpumgr.gpu"),
    ("inside vgpumgr", "vgpumgr.broker.places", "vgpumgr.cli"),
    ("inside vgpumgr", "vgpumgr.gpu.shares", "vgpumgr.sim"),
    ("inside vgpumgr", "vgpumgr.errors", "vgpumgr.client"),
    ("inside the api:", "vgpumgr_api.placement.labels", "vgpumgr_api.claims"),
    ("inside the api:", "vgpumgr_api.tenancy.scaling", "vgpumgr_api.usage"),
    ("inside the api:", "vgpumgr_api.db.types", "vgpumgr_api.actors"),
    ("inside the api's edge", "vgpumgr_api.edge.faults", "vgpumgr_api.edge.transport"),
]
PLACES = {"vgpumgr": ".", "vgpumgr_api": "api", "vgpumgr_agent": "agent"}


def test_import_rules_bite(tmp_path: Path) -> None:
    for package, place in PLACES.items():
        shutil.copytree(ROOT / place / package, tmp_path / place / package)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for _, importer, imported in FORBIDDEN_IMPORTS:
        file = tmp_path / PLACES[importer.split(".")[0]] / f"{importer.replace('.', '/')}.py"
        file.write_text(f"{file.read_text()}import {imported}\n")
    for place in ("vgpumgr", "api/vgpumgr_api"):
        (tmp_path / place / "unplaced.py").write_text("")

    paths = [str(tmp_path / place) for place in PLACES.values()]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; from importlinter.cli import lint_imports;"
        "sys.exit(lint_imports(no_cache=True))"
    )
    wide = {**os.environ, "COLUMNS": "300"}
    checked = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, env=wide)
    assert checked.returncode == 1, checked.stdout + checked.stderr

    # The output has "Broken contracts", then each contract with its name underlined.
    told = re.split(r"\n(.+)\n-+\n", checked.stdout.partition("Broken contracts")[2])
    broken = dict(zip(told[1::2], told[2::2], strict=True))
    missed = [
        (rule, importer, imported)
        for rule, importer, imported in FORBIDDEN_IMPORTS
        if not any(
            name.startswith(rule) and re.search(rf"{re.escape(importer)} -> {re.escape(imported)}\b", text)
            for name, text in broken.items()
        )
    ]
    assert missed == [], checked.stdout
    for rule in ("inside vgpumgr", "inside the api:"):
        assert any("unplaced" in text for name, text in broken.items() if name.startswith(rule)), checked.stdout
