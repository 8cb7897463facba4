# SPDX-License-Identifier: Apache-2.0
"""The scheduler core finds terms in the file that it cannot keep, and the broker reports them with the bound."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vgpumgr.broker.configuration import check_by_scheduler, document, read
from vgpumgr.broker.places import Programs
from vgpumgr.errors import BrokerRefusedError, SettingsError

PROGRAMS = Programs(broker=Path("/p/b"), supervisor=Path("/p/s"), child=Path("/p/c"), library=Path("/p/l.so"))
LIBRARY = '[accelerator]\nlibrary = "/bin/sh"\n'
BLUE = "[tenants.blue]\n"
QUICK = "[tenants.quick]\n"
RED = "[tenants.red]\n"


def check(tmp_path: Path, text: str) -> bool:
    file = tmp_path / "broker.toml"
    file.write_text(LIBRARY + text)
    return check_by_scheduler(document(read(file), PROGRAMS))


def reserve(reserve_us: int, period_us: int = 100_000) -> str:
    return f"reserve_us = {reserve_us}\nreserve_period_us = {period_us}\n"


@pytest.mark.parametrize(
    ("text", "field", "detail"),
    [
        (
            BLUE + "timeslice_us = 1000\n",
            "tenants.blue.timeslice_us",
            "at least 2000: 20 times engine.switch_cost_us",
        ),
        (
            BLUE + "cap_permille = 100\nburst_us = 1999\n",
            "tenants.blue.burst_us",
            "0, or at least 2000: 20 times engine.switch_cost_us",
        ),
        (
            BLUE + reserve(1000, 2000),
            "tenants.blue.reserve_period_us",
            "at least 20000: 4 times engine.chunk_us",
        ),
        (
            "[engine]\nchunk_us = 2000000\n" + BLUE + reserve(1000),
            "tenants.blue.reserve_period_us",
            "no period is long enough while engine.chunk_us is 2000000; shorten engine.chunk_us",
        ),
        ("[engine]\nmin_chunk_us = 50000\n" + BLUE, "engine.min_chunk_us", "at most 5000: engine.chunk_us"),
        (
            BLUE + "cap_permille = 200\n" + reserve(25_000),
            "tenants.blue.reserve_us",
            "250 permille of reserve_period_us exceeds the tenant's cap, 200 permille",
        ),
        (
            QUICK + "weight = 1\n" + reserve(25_000) + RED + "weight = 5\n",
            "tenants.quick.reserve_us",
            "250 permille of reserve_period_us exceeds the tenant's share by weight, 166.7 permille",
        ),
        (
            QUICK + "weight = 1\n" + reserve(25_000) + RED + "weight = 5\n" + reserve(1000),
            "tenants.quick.reserve_us",
            "250 permille of reserve_period_us exceeds the tenant's share by weight, 166.7 permille",
        ),
        (
            QUICK + reserve(30_000) + RED + reserve(20_000),
            "tenants.red.reserve_us",
            "all reservations, with a chunk_us for each, add up to 600 permille; engine.reserve_limit_permille is 500",
        ),
    ],
)
def test_what_the_scheduler_cannot_keep_is_refused_by_field_with_the_bound(
    tmp_path: Path, text: str, field: str, detail: str
) -> None:
    with pytest.raises(BrokerRefusedError) as caught:
        check(tmp_path, text)
    assert (caught.value.code, caught.value.field) == ("field.invalid", field)
    assert str(caught.value) == f"{field}: {detail}"


@pytest.mark.parametrize(
    "text",
    [
        BLUE + "timeslice_us = 2000\n",
        BLUE + "cap_permille = 100\nburst_us = 2000\n",
        BLUE + reserve(1000, 20_000),
        "[engine]\nmin_chunk_us = 5000\n" + BLUE,
        BLUE + "cap_permille = 250\n" + reserve(25_000),
        QUICK + "share_permille = 200\n" + reserve(25_000) + RED + "share_permille = 600\n",
        QUICK + reserve(20_000) + RED + reserve(20_000),
    ],
)
def test_the_bound_itself_is_taken(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text)


def test_a_chunk_is_no_shorter_than_the_grace_that_it_includes(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="engine: chunk_us is 1000, and must be at least grace_us, 2000"):
        check(tmp_path, "[engine]\nchunk_us = 1000\n" + BLUE)


def test_without_the_compiled_core_the_broker_alone_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "vgpumgr.broker.admission", raising=False)
    monkeypatch.setitem(sys.modules, "vgpumgr.sched.core", None)
    assert not check(tmp_path, BLUE + "timeslice_us = 1000\n")
