# SPDX-License-Identifier: Apache-2.0
"""Random lives on both databases, against real processes; see `machine` for the checks after every step."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import getrandbits

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.api.concurrency.deployment import deployed
from tests.api.model.machine import Life
from tests.api.model.service import Service


@pytest.fixture
def service(request: pytest.FixtureRequest, engine_name: str, tmp_path: Path) -> Iterator[Service]:
    """A service with an empty database."""
    if engine_name == "sqlite":
        path = tmp_path / "vgpumgr.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        with deployed(tmp_path, f"sqlite:///{path}", replicas=1) as running:
            yield Service(running, tmp_path)
        return
    cluster = request.getfixturevalue("postgresql")  # only here can replicas share a database
    url = cluster.create("life", template=request.getfixturevalue("postgresql_template"))
    with deployed(tmp_path, url, replicas=2) as running:
        yield Service(running, tmp_path, cluster)
    cluster.drop("life")


def live(service: Service, lives: int, steps: int) -> None:
    """Runs lives; fails at the first contradiction and prints the requests before it."""
    seed = getrandbits(32)
    print(f"seed {seed}")
    # A life is not repeatable to the millisecond, so Hypothesis must neither compare it with others nor shrink it.
    chosen = settings(
        max_examples=1,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for number in range(lives):
        failures: list[BaseException] = []
        given = {"service": service, "seed": f"{seed} {number}", "failures": failures}
        try:
            run_state_machine_as_test(type("Life", (Life,), given), settings=chosen)
        except Exception as error:
            # Hypothesis repeats the life and then complains that it was different.
            raise (failures or [error])[0] from None


def test_whatever_happens_nothing_is_used_twice_or_lost(service: Service) -> None:
    live(service, 2, 40)


@pytest.mark.long
def test_whatever_happens_for_long(service: Service) -> None:
    live(service, 100, 100)
