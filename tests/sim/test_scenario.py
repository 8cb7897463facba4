# SPDX-License-Identifier: Apache-2.0
"""Scenarios: valid ones are read, and every bad one is refused with file, line, field, value and what was expected."""

from pathlib import Path

import pytest

from vgpumgr.errors import ScenarioError
from vgpumgr.sim import document
from vgpumgr.sim.scenario import Loaded, read, tenant_names, written
from vgpumgr.sim.workloads import MODELS

GOOD = """\
title: two tenants
duration: 2s
engine: {kind: splittable, max_chunk: 250us}
tenants:
  - name: blue
    weight: 3
    workload: {backlog: {items: 400us}}
  - name: green
    cap: 25%
    workload:
      model: resnet50-inference
      arrivals: {poisson: {rate: 20/s}}
"""


def problems(text: str, *settings: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        read(text, "a.yaml", settings=settings)
    return list(caught.value.problems)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_quantities_become_integers_of_the_smallest_unit() -> None:
    scenario = read(GOOD, "a.yaml").scenario
    assert scenario.duration == 2_000_000_000
    assert scenario.engine.max_chunk == 250_000
    assert scenario.tenants[1].cap == 250_000
    assert scenario.tenants[1].workload.arrivals is not None
    assert scenario.tenants[1].workload.arrivals.poisson is not None
    assert scenario.tenants[1].workload.arrivals.poisson.rate == 20_000_000
    assert scenario.tenants[0].workload.backlog is not None
    assert scenario.tenants[0].workload.backlog.items == [400_000]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("weight: 3", "weight: 0", "a.yaml:6: tenants[0].weight: 0: expected at least 1"),
        ("weight: 3", "weight: three", "a.yaml:6: tenants[0].weight: 'three': expected a whole number"),
        ("weight: 3", "weight: true", "a.yaml:6: tenants[0].weight: true: expected a whole number"),
        ("weight: 3", "weight:", "a.yaml:6: tenants[0].weight: nothing: expected a value"),
        (
            "weight: 3",
            "wieght: 3",
            "a.yaml:6: tenants[0].wieght: no such field (did you mean weight?); expected one of weight, timeslice,",
        ),
        ("name: blue", "name: Blue", "a.yaml:5: tenants[0].name: 'Blue': expected 1 to 63 characters a-z, 0-9 and '-'"),
        ("name: green", "name: blue", "a.yaml:8: tenants[1].name: 'blue': expected a name that no other tenant has"),
        (
            "duration: 2s",
            "duration: 2",
            "a.yaml:2: duration: 2: expected a time with its unit (ns, us, ms or s), like 250us or 1.5ms",
        ),
        ("duration: 2s", "duration: 2h", "a.yaml:2: duration: '2h': expected a time with its unit"),
        ("duration: 2s", "duration: 9999s", "a.yaml:2: duration: '9999s': expected at most 3600s"),
        ("duration: 2s", "duration: 0.1ns", "a.yaml:2: duration: '0.1ns': expected a whole number of nanoseconds"),
        ("duration: 2s", "duration: 0us", "a.yaml:2: duration: '0us': expected more than 0ns"),
        ("duration: 2s\n", "", "a.yaml:1: duration: is missing; expected it here"),
        ("cap: 25%", "cap: 0.25", "a.yaml:9: tenants[1].cap: 0.25: expected a percentage, like 25%"),
        ("cap: 25%", "cap: 120%", "a.yaml:9: tenants[1].cap: '120%': expected at most 100.0%"),
        ("cap: 25%", "burst: 1ms", "a.yaml:9: tenants[1].burst: expected it beside `cap`"),
        (
            "rate: 20/s",
            "rate: 20",
            "a.yaml:12: tenants[1].workload.arrivals.poisson.rate: 20: expected a rate per second, like 40/s",
        ),
        ("rate: 20/s", "rate: 0/s", "tenants[1].workload.arrivals.poisson.rate: '0/s': expected a rate above 0"),
        (
            "model: resnet50-inference",
            "model: resnet50",
            "a.yaml:11: tenants[1].workload.model: 'resnet50': no such model (did you mean resnet50-",
        ),
        (
            "model: resnet50-inference",
            "model: Resnet-50",
            "'Resnet-50': no such model (did you mean resnet50-inference or resnet50-training?)",
        ),
        (
            "{poisson: {rate: 20/s}}",
            "{poisson: {rate: 20/s}, closed: {}}",
            "a.yaml:12: tenants[1].workload.arrivals: fields: expected exactly one of closed, poisson, periodic,",
        ),
        (
            "{backlog: {items: 400us}}",
            "{}",
            "a.yaml:7: tenants[0].workload: fields: expected exactly one of backlog, model, kernels, trace",
        ),
        (
            "{backlog: {items: 400us}}",
            "{backlog: {items: []}}",
            "a.yaml:7: tenants[0].workload.backlog.items: a list: expected at least 1 of them",
        ),
        (
            "{backlog: {items: 400us}}",
            "{backlog: {items: 400us, nap: 1ms}}",
            "a.yaml:7: tenants[0].workload.backlog: fields: expected nap and nap_every together",
        ),
        (
            "{backlog: {items: 400us}}",
            "{backlog: {items: 400us}, launch: 5us}",
            "a.yaml:7: tenants[0].workload: fields: expected no `launch` beside `backlog`",
        ),
        (
            "{backlog: {items: 400us}}",
            "{kernels: {count: 10, total: 1ms, median: 200us}}",
            "a.yaml:7: tenants[0].workload.kernels: fields: expected a total of at least count x median",
        ),
        ("weight: 3", "slices: 5000", "a.yaml:6: tenants[0].slices: 5000: expected 1 to 4096, or a list"),
        ("weight: 3", "count: 4097", "a.yaml:6: tenants[0].count: 4097: expected at most 4096"),
        ("weight: 3", "count: 4000\n    slices: 2", "a.yaml:5: tenants: 8001 slices in all: expected at most 4096"),
        ("kind: splittable", "kind: elastic", "engine.kind: 'elastic': expected non_preemptible, splittable or"),
        ("max_chunk: 250us", "max_chunk: 2us, min_chunk: 3us", "engine.min_chunk: expected at most max_chunk"),
        ("duration: 2s", "duration: 2s\nwarm_up: 2s", "a.yaml:3: warm_up: '2s': expected less than the duration"),
        ("duration: 2s", "duration: 2s\nwindow: 1us", "a.yaml:3: window: expected at most 10000 windows"),
        ("duration: 2s", "duration: 2s\nseeds: 1001", "a.yaml:3: seeds: 1001: expected at most 1000"),
        (
            "duration: 2s",
            "duration: 2s\nscheduler: {name: fifo, policy: equal_share}",
            "a.yaml:3: scheduler.policy: expected it with scheduler vgpumgr only, not fifo",
        ),
        (
            "duration: 2s",
            "duration: 2s\nscheduler: {policy: fixed_share}",
            "a.yaml:3: scheduler: expected `places` with policy fixed_share, and only with it",
        ),
        (
            "duration: 2s",
            "duration: 2s\nchanges: [{at: 1s, tenant: grey, weight: 2}]",
            "a.yaml:3: changes[0].tenant: 'grey': expected a tenant's name, one of blue, green",
        ),
        (
            "duration: 2s",
            "duration: 2s\nchanges: [{at: 2s, tenant: blue, weight: 2}]",
            "a.yaml:3: changes[0].at: '2s': expected a time before the end",
        ),
        (
            "duration: 2s",
            "duration: 2s\ntargets: [{tenant: blue}]",
            "a.yaml:3: targets[0]: expected at least one target, like p99: 2ms",
        ),
        (
            "duration: 2s",
            "duration: 2s\ntargets: [{tenant: blue, p99: 2ms}]",
            "a.yaml:3: targets[0].p99: blue has no requests, it always has work; expected a share or share_error",
        ),
        (
            "duration: 2s",
            "duration: 2s\ntargets: [{tenant: green, share_error: 2%}]",
            "a.yaml:3: targets[0].share_error: green does not always have work; expected a tenant that does, or p99",
        ),
        (
            "tenants:\n",
            "",
            "a.yaml:4: this line does not belong to the one above it; is a line missing above it, like `tenants:`,",
        ),
        ("title: two tenants", "title: two: tenants", "a.yaml:1: quote a value that has `: ` in it; is a line missing"),
    ],
)
def test_a_bad_field_is_named_with_its_line_its_value_and_what_was_expected(old: str, new: str, expected: str) -> None:
    assert expected in problems(changed(old, new))[0]


def test_a_change_may_end_a_reservation_by_giving_none() -> None:
    text = changed("duration: 2s", "duration: 2s\nchanges: [{at: 1s, tenant: blue, reservation: null}]")
    change = read(text, "a.yaml").scenario.changes[0]
    assert change.model_fields_set == {"at", "tenant", "reservation"}


def test_all_problems_are_told_at_once_and_at_most_twenty() -> None:
    assert len(problems(changed("weight: 3", "weight: 0").replace("cap: 25%", "cap: 1"))) == 2
    many = "".join(
        f"  - {{name: t{number}, weight: 0, workload: {{backlog: {{items: 1us}}}}}}\n" for number in range(50)
    )
    assert len(problems(GOOD + many)) == 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: &x [1]\nb: *x\n", "a.yaml:1: anchors are not accepted; expected the value itself"),
        ("a: *x\n", "a.yaml:1: aliases are not accepted; expected the value itself"),
        ("a: 1\nb: !!python/object:os.system {}\n", "a.yaml:2: tags are not accepted; expected a plain value"),
        ("&k a: 1\n", "a.yaml:1: anchors are not accepted"),
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3: field 'a' is given twice; expected it once"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2: expected one document, found a second `---`"),
        ("a: [1\nb: 2\n", "a.yaml:2: "),
        ("[1]: 2\n", "a.yaml:1: expected a field's name"),
        ("a: \x07\n", "expected YAML"),
        ("[" * 40 + "]" * 40, "a.yaml:1: expected at most 16 levels"),
        ("[" * 100_000, "a.yaml:1: expected at most 16 levels"),
        ("a: [" + "1," * 60_000 + "]", "a.yaml:1: expected at most 50000 values"),
        ("a: " + "x" * 300_000, "a.yaml: expected at most 262144 bytes"),
        ("", "a.yaml:1: scenario: nothing: expected fields"),
        ("- a\n", "a.yaml:1: scenario: a list: expected fields"),
        ("<<: {a: 1}\n", "a.yaml:1: <<: no such field"),
    ],
)
def test_yaml_that_could_grow_or_surprise_is_refused(text: str, expected: str) -> None:
    found = problems(text)
    assert any(expected in problem for problem in found), found


def test_words_and_numbers_mean_what_they_look_like() -> None:
    root = document.parse("{a: no, b: 1:30, c: 0x10, d: 017, e: 2001-01-01, f: true, g: -1.5, h: '3', i: ~}", "a.yaml")
    assert root.plain() == {
        "a": "no",
        "b": "1:30",
        "c": "0x10",
        "d": 17,
        "e": "2001-01-01",
        "f": True,
        "g": -1.5,
        "h": "3",
        "i": None,
    }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(ScenarioError) as caught:
            written(path).loaded()
        return str(caught.value)

    assert reason(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file or directory; give a scenario in YAML"
    assert "is a directory" in reason(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"title: x\nabout: caf\xe9\n")
    assert reason(tmp_path / "latin.yaml") == f"{tmp_path}/latin.yaml:2: expected UTF-8 text, found byte 0xe9"
    (tmp_path / "huge.yaml").write_bytes(b"#" * (document.MAX_BYTES + 1))
    assert "expected a scenario in YAML of at most 262144 bytes" in reason(tmp_path / "huge.yaml")


def weights(loaded: Loaded) -> list[int | None]:
    return [tenant.weight for tenant in loaded.scenario.tenants]


def test_a_target_for_all_needs_one_who_can_have_it() -> None:
    asked = changed("duration: 2s", "duration: 2s\ntargets: [{p99: 2ms}]")
    assert read(asked, "a.yaml").scenario.targets
    backlog = asked.replace("model: resnet50-inference\n", "backlog: {items: 1ms}\n").replace(
        "      arrivals: {poisson: {rate: 20/s}}\n", ""
    )
    assert "a.yaml:3: targets[0].p99: no tenant has requests" in problems(backlog)[0]


def test_settings_reach_fields_by_name_by_number_and_all_at_once() -> None:
    assert weights(read(GOOD, "a.yaml", settings=["tenants.green.weight=7"])) == [3, 7]
    assert weights(read(GOOD, "a.yaml", settings=["tenants[0].weight=7"])) == [7, None]
    assert weights(read(GOOD, "a.yaml", settings=["tenants.*.weight=5", "tenants.blue.weight=6"])) == [6, 5]
    loaded = read(GOOD, "a.yaml", settings=["scheduler={policy: fixed_share, places: 4}", "seeds = 7"])
    assert (loaded.scenario.scheduler.places, loaded.scenario.seeds) == (4, 7)
    loaded = read(GOOD, "a.yaml", settings=["scheduler.parameters.quantum_ns=5ms", "engine.max_chunk=1ms"])
    assert loaded.scenario.scheduler.parameters == {"quantum_ns": "5ms"}
    assert loaded.scenario.engine.max_chunk == 1_000_000


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("tenants.red.weight=1", "--set tenants.red.weight=1: 'red' does not exist; expected one of blue, green"),
        ("tenants[7].weight=1", "'7' does not exist; expected one of blue, green"),
        ("tenants.*", "--set tenants.*: expected FIELD=VALUE, like tenants.blue.weight=3"),
        ("a b=1", "'a b' is not the path of a field; expected one like tenants.blue.weight"),
        ("tenants.blue.weight=0", "--set tenants.blue.weight=0: tenants[0].weight: 0: expected at least 1"),
        ("seeds=[1", "--set seeds=[1:1: "),
        ("speed=3", "--set speed=3: speed: no such field (did you mean seed?)"),
        ("tennants.blue.weight=3", "tennants: no such field (did you mean tenants?)"),
        ("duration.x=3", "--set duration.x=3: 'x' does not exist; expected the path of a field"),
    ],
)
def test_a_bad_setting_is_named_instead_of_the_file(setting: str, expected: str) -> None:
    assert expected in problems(GOOD, setting)[0]


def test_several_of_one_tenant_get_numbers_that_must_be_free() -> None:
    text = changed("    weight: 3", "    count: 2").replace("name: green", "name: blue-2")
    assert tenant_names(read(changed("weight: 3", "count: 2"), "a.yaml").scenario.tenants[0]) == ["blue-1", "blue-2"]
    assert problems(text) == ["a.yaml:8: tenants[1].name: 'blue-2': expected a name that no other tenant has"]


def test_the_models_are_named_in_lower_case() -> None:
    assert all(name == name.lower() for name in MODELS)
