# SPDX-License-Identifier: Apache-2.0
"""`vgpumgr simulate` from the view of a user: examples, tables, JSON, plots, sweeps, and its errors."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from vgpumgr.cli.main import main
from vgpumgr.cli.session import Session
from vgpumgr.sim import examples

SMALL = """\
title: small
duration: 200ms
warm_up: 20ms
seeds: 2
window: 20ms
engine: {kind: splittable, max_chunk: 100us}
tenants:
  - {name: blue, weight: 3, workload: {backlog: {items: 400us}}}
  - {name: green, workload: {backlog: {items: 150us}}}
  - name: light
    timeslice: 200us
    workload: {kernels: {count: 2, total: 200us, median: 100us}, arrivals: {poisson: {rate: 100/s}}}
targets:
  - {tenant: light, p99: 20ms}
"""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    def run(*arguments: object) -> Result:
        capfd.readouterr()
        status = main(["simulate", *map(str, arguments)], Session(env={}))
        captured = capfd.readouterr()
        return Result(int(status), captured.out, captured.err)

    return run


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_it_prints_shares_latencies_and_targets(cli: Cli, small: Path) -> None:
    result = cli(small)
    assert (result.status, result.err) == (0, "")
    blue = next(line for line in result.out.splitlines() if line.startswith("blue "))
    assert "simulated engine, splittable" in result.out
    assert "seeds 1 to 2" in result.out
    assert 70 < float(blue.split()[2].rstrip("%")) < 80
    assert "SLOWDOWN" in result.out
    assert "met     light: p99 " in result.out


def test_the_same_seed_gives_the_same_figures_and_another_seed_others(cli: Cli, small: Path) -> None:
    first, again, other = (json.loads(cli(small, "-o", "json", "--seed", seed).out) for seed in (3, 3, 4))
    assert first == again
    assert first["seeds"] == [3, 4]
    assert first["schedule_hashes"][1] == other["schedule_hashes"][0]
    assert len({*first["schedule_hashes"], *other["schedule_hashes"]}) == 3


def test_what_is_asked_for_is_said_of_who_does_not_wait_for_the_last_request(cli: Cli, small: Path) -> None:
    light = "tenants.light.workload.arrivals"
    periodic = cli(small, "-o", "json", "--set", f"{light}={{periodic: {{rate: 500/s, phase: 0ms}}}}")
    figures = json.loads(periodic.out)["tenants"][2]["figures"]
    # 200 us, 500 times a second.
    assert figures["offered_share"]["mean"] == pytest.approx(0.1, rel=0.02)
    closed = json.loads(cli(small, "-o", "json", "--set", f"{light}={{closed: {{}}}}").out)
    assert "offered_share" not in closed["tenants"][2]["figures"]
    assert "offered_share" not in closed["tenants"][0]["figures"]


def test_a_missed_target_is_exit_status_8(cli: Cli, small: Path) -> None:
    result = cli(small, "--set", "targets=[{tenant: light, p99: 1us}]")
    assert result.status == 8
    assert "missed  light: p99 " in result.out


def test_json_goes_to_a_file_as_well(cli: Cli, small: Path, tmp_path: Path) -> None:
    result = cli(small, "--json", tmp_path / "out.json", "--seeds", "1")
    content = json.loads((tmp_path / "out.json").read_text())
    assert result.out.startswith("small\n")
    assert content["format"] == "vgpumgr.simulation/1"
    assert {tenant["name"] for tenant in content["tenants"]} == {"blue", "green", "light"}
    assert content["tenants"][2]["figures"]["slowdown_p99"]["mean"] >= 1


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_files_that_are_what_they_are_called(cli: Cli, small: Path, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "new" / "plots"
    result = cli(small, "--plots", folder, "--format", suffix)
    names = [f"{name}.{suffix}" for name in ("latencies", "runs", "shares")]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert result.err == "written: " + ", ".join(str(folder / names[index]) for index in (1, 2, 0)) + "\n"
    start = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert all((folder / name).read_bytes().startswith(start) for name in names)


class Page(HTMLParser):
    """Collects the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.described: list[str | None] = []
        self.ids: set[str | None] = set()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids.add(found.get("id"))
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag == "svg":
            self.described.append(found.get("aria-labelledby"))


def test_a_page_needs_nothing_else_and_says_in_words_what_plots_show(cli: Cli, small: Path, tmp_path: Path) -> None:
    scripted = '--set=title="<script>alert(1)</script>"'
    assert cli(small, scripted, "--plots", tmp_path, "--format", "html").status == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "://" not in text
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert page.tags.count("svg") == page.tags.count("figcaption") == 3
    assert page.described == ["runs-text", "shares-text", "latencies-text"]
    assert set(page.described) <= page.ids
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text


def test_the_same_simulation_gives_the_same_page(cli: Cli, small: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        cli(small, "--plots", tmp_path / name, "--format", "html")
        pages.append((tmp_path / name / "report.html").read_bytes())
    assert pages[0] == pages[1]


def test_a_sweep_ranks_who_meets_the_targets_first_and_says_what_the_others_miss(cli: Cli, small: Path) -> None:
    swept = cli(
        small,
        "--sweep",
        "tenants.blue.timeslice=200us,20ms",
        "--sweep",
        "tenants.light.timeslice=100us,20ms",
        "--set",
        "targets=[{tenant: light, p99: 2500us}]",
        "-o",
        "json",
    )
    content = json.loads(swept.out)
    points = content["points"]
    assert content["format"] == "vgpumgr.sweep/1"
    assert content["fields"] == ["tenants.blue.timeslice", "tenants.light.timeslice"]
    assert len(points) == 4
    assert swept.status == 0
    assert points[0]["met"]
    assert points[0]["values"][0] == "200us"
    assert not points[-1]["met"]
    assert points[-1]["missed"][0].startswith("light: p99 ")
    met = [point["met"] for point in points]
    assert met == sorted(met, reverse=True)
    switches = [point["switches_per_s"] for point in points if point["met"]]
    assert switches == sorted(switches)
    assert max(point["share_error"] for point in points if point["met"]) < 0.01


def test_a_point_that_is_refused_comes_last_with_its_reason(cli: Cli, small: Path) -> None:
    result = cli(small, "--sweep", "tenants.blue.timeslice=1ms,1us", "--seeds", "1")
    lines = [line for line in result.out.splitlines() if line]
    assert result.status == 0
    assert lines[1].split()[:2] == ["RANK", "tenants.blue.timeslice"]
    assert lines[2].split()[:2] == ["1", "1ms"]
    assert "tenants[0].timeslice: the scheduler refuses it: below " in lines[3]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sweep", "tenants.blue.weight"], "--sweep tenants.blue.weight: expected FIELD=VALUE,VALUE,..."),
        (["--sweep", "seeds=1,,2"], "--sweep seeds=1,,2: expected FIELD=VALUE,VALUE,..."),
        (
            ["--sweep", f"seed={','.join(map(str, range(33)))}", "--sweep", f"window={','.join(map(str, range(32)))}"],
            "at most 1024",
        ),
        (["--sweep", "seeds=0"], "--sweep seeds: seeds: 0: expected at least 1"),
        (
            ["--sweep", "tenants.red.weight=1,2"],
            "--sweep tenants.red.weight: 'red' does not exist; expected one of blue",
        ),
        (["--sweep", "seeds=1,2,1"], "--sweep seeds: '1' is given twice; expected it once"),
        (["--sweep", "seeds=1", "--sweep", "seeds=2"], "--sweep seeds: the field is given twice; give all its values"),
        (["--sweep", "seeds=1", "--plots", "x"], "--plots has no meaning for a sweep"),
        (["--set", "scheduler.name=cfs"], "scheduler.name: 'cfs': expected one of vgpumgr, "),
        (
            ["--set", "scheduler={name: fifo, parameters: {x: 1}}"],
            "scheduler.parameters: fifo has no 'x'; it takes none",
        ),
        (["--set", "tenants.blue.timeslice=1us"], "tenants[0].timeslice: the scheduler refuses it: below "),
        (
            ["--set", "engine={kind: splittable, preempt_latency: 1us}"],
            "engine: preempt_latency_ns: a splittable engine",
        ),
        (["--set", "tenants.light.workload.trace=none.csv"], "tenants[2].workload: fields: expected exactly one of"),
        (["--seeds", "0"], "argument.invalid: "),
        (["--format", "gif"], "argument.invalid: "),
        (["--format", "svg"], "--format has no meaning without plots; give --plots DIR as well"),
        (["--list"], "give one of SCENARIO, --list and --example"),
        (["--example", "disb"], "give one of SCENARIO, --list and --example"),
        (["--set", "tenants.blue.timeslice=5us"], "refuses it: below 10us, the shortest there is, or above 1 s"),
        (
            ["--set", "engine.switch_cost=10us", "--set", "tenants.blue.timeslice=5us"],
            "refuses it: below 200us, what 20 switches cost, or above 1 s",
        ),
        (
            ["--set", "tenants.blue.mode=strict"],
            "tenants[0].cap: the scheduler refuses it: mode strict needs one; give",
        ),
        (
            ["--set", "tenants.blue.cap=25%", "--set", "scheduler.policy=equal_share"],
            "tenants[0].cap: the scheduler refuses it: under equal_share places bound a share; omit the cap",
        ),
        (
            ["--set", "scheduler={policy: fixed_share, places: 9}"],
            "tenants[0].mode: the scheduler refuses it: fixed_share takes mode strict only",
        ),
        (
            ["--set", "tenants.blue.mode=strict", "--set", "scheduler.policy=equal_share"],
            "tenants[0].mode: the scheduler refuses it: equal_share takes mode fair only",
        ),
        (
            ["--set", "duration=3s", "--set", "tenants.light.workload.arrivals.poisson.rate=1000000/s"],
            "at most 2000000",
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_status_2(
    cli: Cli, small: Path, arguments: list[str], expected: str
) -> None:
    result = cli(small, *arguments)
    assert result.status == 2
    assert expected in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


def test_problems_of_a_file_are_told_together_with_their_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(SMALL.replace("weight: 3", "wait: 3").replace("100/s", "100"))
    result = cli(path)
    assert result.status == 2
    first, second = result.err.splitlines()
    assert first.startswith(
        f"vgpumgr: scenario.invalid: {path}:8: tenants[0].wait: no such field (did you mean weight?)"
    )
    assert second.startswith(f"  {path}:12: tenants[2].workload.arrivals.poisson.rate: 100: expected a rate")


def test_a_simulation_without_end_is_refused_while_it_runs(cli: Cli, small: Path, monkeypatch: Any) -> None:
    from vgpumgr.sim import play

    monkeypatch.setattr(play, "MAX_DECISIONS", 100)
    result = cli(small)
    assert result.status == 2
    assert "duration: " in result.err
    assert "expected at most 100 in all; shorten it" in result.err


def test_a_trace_beside_the_scenario_is_played(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("arrival_us,work_us\n" + "".join(f"{at * 1000},300\n" for at in range(100)))
    path = tmp_path / "own.yaml"
    path.write_text("duration: 120ms\nseeds: 1\ntenants: [{name: own, workload: {trace: own.csv}}]\n")
    result = cli(path, "-o", "json")
    own = json.loads(result.out)["tenants"][0]["figures"]
    assert own["requests"]["mean"] == 100
    assert own["latency_max_ns"]["mean"] == 300_000
    assert own["slowdown_mean"]["mean"] == 1
    path.write_text(path.read_text().replace("own.csv", "none.csv"))
    assert "none.csv: no such file or directory; give a trace in CSV or JSON" in cli(path).err


def test_what_is_capped_changed_and_gone_gets_what_is_due(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "life.yaml"
    path.write_text("""\
duration: 3s
seeds: 1
engine: {kind: splittable, max_chunk: 100us}
tenants:
  - {name: capped, weight: 2, cap: 20%, burst: 5ms, workload: {backlog: {items: 300us}}}
  - {name: steady, slices: [{weight: 1}, {weight: 3}], workload: {backlog: {items: 300us}}}
  - {name: comer, starts: 1s, leaves: 2s, workload: {backlog: {items: 300us}}}
changes:
  - {at: 1500ms, tenant: comer, weight: 3}
""")
    tenants = json.loads(cli(path, "-o", "json").out)["tenants"]
    # Of 3 s: 0.6; then 0.8 + 0.2 + 0.1 + 0.8 of the rest; and 0.2 + 0.3 of that.
    due = {"capped": 0.2, "steady": (0.8 + 0.4 / 2 + 0.4 / 4 + 0.8) / 3, "comer": (0.4 / 2 + 0.4 * 3 / 4) / 3}
    for tenant in tenants:
        figures = tenant["figures"]
        assert tenant["entitlement"] == "exact"
        assert figures["entitled_share"]["mean"] == pytest.approx(due[tenant["name"]])
        assert figures["obtained_share"]["mean"] == pytest.approx(due[tenant["name"]], abs=0.004)


def test_the_list_names_every_example_and_what_it_shows(cli: Cli) -> None:
    listed = cli("--list")
    for name in examples.names():
        assert any(line.startswith(f"{name} ") and len(line.split()) > 3 for line in listed.out.splitlines())
    assert [one["name"] for one in json.loads(cli("--list", "-o", "json").out)] == examples.names()
    assert cli("--example", "fair-weighted").out == examples.text("fair-weighted")
    assert "'x': no such example; expected one of cap-hard, " in cli("--example", "x").err


def test_without_a_scenario_it_says_where_to_start(cli: Cli) -> None:
    result = cli()
    assert result.status == 2
    assert "no scenario; give a YAML file, or start from one of `vgpumgr simulate --list`" in result.err


@pytest.mark.parametrize("name", examples.names())
def test_every_example_runs_and_meets_its_targets(cli: Cli, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(cli("--example", name).out)
    result = cli(path, "--seeds", "16")
    assert result.status == 0, result.out + result.err
    assert "TARGET" in result.out


def test_a_pipe_gets_no_progress_and_standard_input_is_read() -> None:
    script = "from vgpumgr.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", script, "simulate", "-", "--seeds", "1"], input=SMALL, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small\n")


def test_a_terminal_gets_progress_and_the_pipe_beside_it_does_not() -> None:
    master, terminal = os.openpty()
    script = "from vgpumgr.cli.main import run; run()"
    command = [sys.executable, "-c", script, "simulate", "-", "--seeds", "1"]
    done = subprocess.run(command, input=SMALL, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    seen = os.read(master, 65536).decode()
    os.close(master)
    assert done.stdout.startswith("small\n")
    assert "simulating" in seen


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("yaml", "yaml is not installed; run `make setup` in a checkout, or install vgpumgr with its extra `sim`"),
        ("matplotlib", "matplotlib is not installed; run `make setup` in a checkout"),
        ("vgpumgr.sim._native", "the simulator's engine is not compiled; run `python -m vgpumgr.sim._build`"),
        ("vgpumgr.sched._core", "the scheduler core is not compiled; run `python -m vgpumgr.sched._build`"),
    ],
)
def test_what_is_not_installed_is_named_in_one_line(missing: str, expected: str, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules[sys.argv[1]] = None; from vgpumgr.cli.main import main;"
        "from vgpumgr.cli.session import Session; sys.exit(main(['simulate', *sys.argv[2:]], Session(env={})))"
    )
    command = [sys.executable, "-c", script, missing]
    done = subprocess.run([*command, "x.yaml", "--plots", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"vgpumgr: simulator.missing: {expected}")
    listed = subprocess.run([*command, "--list"], capture_output=True, text=True)
    assert listed.returncode == (0 if missing == "matplotlib" else 1), "only plots need it"
    assert len(done.stderr.splitlines()) == 1
