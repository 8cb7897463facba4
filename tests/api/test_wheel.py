# SPDX-License-Identifier: Apache-2.0
"""The installed package contains its migrations, so a database can be upgraded without a checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database

from tests.api.http.process import settings_file

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *("LICENSE", "MANIFEST.in", "README.md", "agent", "api", "kmod/COPYING", "kmod/VERSION", "kmod/sched"),
    *("migrations", "pyproject.toml", "setup.py", "vgpumgr"),
)

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment with our wheel; it shares only the wheel's dependencies with the present
    one.
    """
    directory = tmp_path_factory.mktemp("wheel")
    tree = directory / "source"
    built = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in SOURCES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=built)
        else:
            shutil.copy(ROOT / name, tree / name)
    quiet = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps")
    # Build without a compiler: the extensions are optional and take long.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CC": "false"}
    wheel = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-build-isolation", "-w", directory, tree]
    subprocess.run(wheel, check=True, capture_output=True, timeout=300, env=clean)
    made = directory / "venv"
    venv.create(made, with_pip=False, symlinks=True)
    [packages] = made.glob("lib/python*/site-packages")
    [file] = directory.glob("vgpumgr-*.whl")
    target = ["--no-index", "--prefix", made, file]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, "--ignore-installed", *target],
        check=True,
        capture_output=True,
        timeout=120,
        env=clean,
    )
    # A path in a .pth file does not activate .pth files in that directory, such as the checkout's editable install.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made / "bin"


def run(program: Path, *arguments: object, directory: Path, refused: str = "") -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, *map(str, arguments)], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode != 0) == bool(refused), done.stderr
    assert refused in done.stderr
    return done.stdout.strip()


def test_an_installed_wheel_migrates_a_database_of_the_first_release(
    installed: Path, empty_url: str, tmp_path: Path
) -> None:
    where = run(
        installed / "python", "-c", "import vgpumgr_api.db.schema as s; print(s.MIGRATIONS)", directory=tmp_path
    )
    assert Path(where).is_relative_to(installed.parent)
    database = Database(empty_url)
    with database.engine.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text("INSERT INTO tenants (id, name, generation, created_at) VALUES (:id, 'acme', 1, :at)"),
            {"id": "00000000000040008000000000000001", "at": "2026-11-21 12:00:00+00:00"},
        )
    settings = settings_file(tmp_path, database=empty_url)
    told = run(installed / "vgpumgr-api", "migrate", "--config", settings, directory=tmp_path)
    assert told.startswith("the tables were brought from step 0001 to ")
    schema.require_current(database)
    assert schema.differences(database) == []
    with database.engine.connect() as connection:
        assert connection.scalar(text("SELECT name FROM tenants")) == "acme"
    run(installed / "vgpumgr-api", "migrate", "--config", settings, directory=tmp_path)
    back = (
        installed / "python",
        "-m",
        "alembic",
        "-c",
        alembic_ini(tmp_path),
        "-x",
        f"database={empty_url}",
        "downgrade",
    )
    run(*back, "0001", directory=tmp_path, refused="an audit, which is kept for ever; restore a backup")
    schema.require_current(database)
    run(*back, "0002", directory=tmp_path)
    assert schema.revision(database) == "0002"
    run(installed / "vgpumgr-api", "migrate", "--config", settings, directory=tmp_path)
    schema.require_current(database)
    assert schema.differences(database) == []
    with database.engine.connect() as connection:
        assert connection.scalar(text("SELECT name FROM tenants")) == "acme"
    database.close()


def alembic_ini(directory: Path) -> Path:
    """Writes an alembic.ini for the migrations of the wheel."""
    path = directory / "alembic.ini"
    path.write_text("[alembic]\nscript_location = vgpumgr_api:migrations\n")
    return path
