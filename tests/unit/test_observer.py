# SPDX-License-Identifier: Apache-2.0
"""The observer: what it reads from a trace, how it adds up, and that it reports every contradiction."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from vgpumgr.errors import ControlUnavailableError
from vgpumgr.observer import trace
from vgpumgr.observer.account import accounts, shares
from vgpumgr.observer.trace import EndedRun, Hold, Parked

ROOT = Path(__file__).parents[2]
GPU = "0000:00:10.0"
TEXT = """\
# tracer: nop
CPU:1 [LOST 3 EVENTS]
 vgpu/0000:00:10-91 [000] d..2. 5.1: vgpu_run_begin: gpu=0000:00:10.0 tenant=blue slice=u start_ns=1 run=1 run_ns=0
 vgpu/0000:00:10-91 [000] d..2. 5.2: vgpu_run_end: gpu=0000:00:10.0 tenant=blue \
slice=11111111-0000-4000-8000-000000000001 start_ns=1000 length_ns=200 timeslice_ns=150 run=7 run_ns=1200 reason=dry
 vgpu/0000:00:10-91 [000] d..2. 5.3: vgpu_hold: gpu=0000:00:10.0 tenant=blue start_ns=1200 length_ns=30
 vgpu/0000:00:10-91 [000] d..2. 5.3: vgpu_parked: gpu=0000:00:10.0 tenant=blue length_ns=70 run_ns=1300
 vgpu/0000:00:10-91 [000] d..2. 5.3: sched_switch: gpu=no
"""


def runs(tenant: str, *lengths_ns: int, first: int = 1) -> list[EndedRun]:
    """Return consecutive runs with matching counters."""
    return [
        EndedRun(
            gpu=GPU,
            tenant=tenant,
            slice="",
            start_ns=0,
            length_ns=length_ns,
            timeslice_ns=100,
            run=first + at,
            run_ns=sum(lengths_ns[: at + 1]),
            reason="timeslice",
        )
        for at, length_ns in enumerate(lengths_ns)
    ]


def test_lines_become_runs_holds_parked_time_and_a_count_of_what_was_lost() -> None:
    recording = trace.parse(TEXT)
    assert recording.lost == 3
    assert recording.happened == (
        EndedRun(
            gpu=GPU,
            tenant="blue",
            slice="11111111-0000-4000-8000-000000000001",
            start_ns=1000,
            length_ns=200,
            timeslice_ns=150,
            run=7,
            run_ns=1200,
            reason="dry",
        ),
        Hold(gpu=GPU, tenant="blue", start_ns=1200, length_ns=30),
        Parked(gpu=GPU, tenant="blue", length_ns=70, run_ns=1300),
    )


@pytest.mark.parametrize("name", ["vgpu_run_end", "vgpu_hold", "vgpu_parked"])
def test_the_fields_are_those_that_the_module_prints(name: str) -> None:
    text = (ROOT / "kmod" / "trace.h").read_text()
    printed = re.search(rf'TRACE_EVENT\({name},.*?TP_printk\("([^"]*)"', text, re.DOTALL)
    assert printed
    line = re.sub(r"%s|%pUl", "x", printed[1])
    line = re.sub(r"%llu", "1", line)
    assert len(trace.parse(f"{name}: {line}").happened) == 1, line


def test_the_run_that_opens_the_window_is_not_in_it() -> None:
    (blue,) = accounts(runs("blue", 1000, 90, 120))
    assert (blue.runs, blue.run_ns, blue.longest_ns, blue.longest_over_ns) == (2, 210, 120, 20)
    assert (blue.counted_runs, blue.counted_ns) == (2, 210)
    assert blue.agrees


def test_holds_are_charged_outside_of_runs() -> None:
    first, second = runs("blue", 10, 20)
    held = replace(second, run_ns=second.run_ns + 5)
    (blue,) = accounts([Hold(gpu=GPU, tenant="blue", start_ns=0, length_ns=99), first, hold(5), held])
    assert (blue.run_ns, blue.hold_ns, blue.total_ns, blue.agrees) == (20, 5, 25, True)


def hold(length_ns: int) -> Hold:
    return Hold(gpu=GPU, tenant="blue", start_ns=0, length_ns=length_ns)


def test_parked_time_is_charged_outside_of_runs_and_compared_at_once() -> None:
    first, second = runs("blue", 10, 20)
    later = replace(second, run_ns=second.run_ns + 7 + 8)
    (blue,) = accounts([parked(99, counted_ns=99), first, parked(7, counted_ns=17), parked(8, counted_ns=25), later])
    assert (blue.run_ns, blue.parked_ns, blue.total_ns, blue.agrees) == (20, 15, 35, True)
    (blue,) = accounts([first, parked(7, counted_ns=18), replace(second, run_ns=38)])
    assert blue.faults == ["after run 1: 7 ns parked and 0 ns of holds were recorded, 8 ns counted"]
    assert not blue.agrees


def parked(length_ns: int, *, counted_ns: int) -> Parked:
    return Parked(gpu=GPU, tenant="blue", length_ns=length_ns, run_ns=counted_ns)


def test_a_run_that_was_not_recorded_is_noticed() -> None:
    recorded = runs("blue", 10, 20, 30, 40)
    del recorded[2]
    (blue,) = accounts(recorded)
    assert not blue.agrees
    assert blue.faults == ["1 runs before run 4 were not recorded"]


@pytest.mark.parametrize("wrong_ns", [-1, 1])
def test_one_nanosecond_that_the_counter_has_otherwise_is_noticed(wrong_ns: int) -> None:
    first, second = runs("blue", 10, 20)
    (blue,) = accounts([first, replace(second, run_ns=second.run_ns + wrong_ns)])
    assert not blue.agrees
    assert "20 ns and 0 ns of holds were recorded" in blue.faults[0]


def test_a_tenant_that_was_configured_anew_is_not_taken_for_the_old_one() -> None:
    (blue,) = accounts([*runs("blue", 10, 20), *runs("blue", 5, 6)])
    assert blue.faults == ["run 1 came after run 2"]


def test_shares_are_of_the_time_that_a_gpu_was_used() -> None:
    found = accounts([*runs("blue", 1, 300), *runs("green", 1, 100)])
    assert shares(found) == {(GPU, "blue"): 0.75, (GPU, "green"): 0.25}
    assert shares(accounts(runs("idle", 1))) == {(GPU, "idle"): 0.0}


def test_without_a_tracing_file_system_it_says_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(ControlUnavailableError, match="takes root"), trace.recorded(tracing=tmp_path / "none"):
        pass


def test_an_instance_is_removed_also_when_the_module_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "instances").mkdir()
    with pytest.raises(ControlUnavailableError, match="not loaded"), trace.recorded(tracing=tmp_path):
        pass
    assert list((tmp_path / "instances").iterdir()) == []
