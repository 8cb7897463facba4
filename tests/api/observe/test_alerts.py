# SPDX-License-Identifier: Apache-2.0
"""The alerting rules of docs/alerts.yml use only exported metrics, and only labels that their results have.

Prometheus itself shows when they fire, on the series of alerts_cases.yml.
"""

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from promql_parser import parse, parse_duration
from vgpumgr_agent import metrics
from vgpumgr_agent.backends import ObservedBroker
from vgpumgr_agent.executions import Standing
from vgpumgr_agent.reconcile import Orphans
from vgpumgr_api.app import create_app
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.installation import installation
from vgpumgr_api.observe import figures

from tests.agent.test_reconcile import observed, seen, seen_group
from tests.api.http.cloud import Cloud
from tests.api.observe.promql import Exported, MistakenError, labels, selectors
from vgpumgr.control.listed import Trouble, Unusable
from vgpumgr.wire.resources import HostState, SliceState

ROOT = Path(__file__).resolve().parents[3]
RULES_FILE = ROOT / "docs" / "alerts.yml"
CASES_FILE = Path(__file__).with_name("alerts_cases.yml")
PROMTOOL = ROOT / "build" / "promtool"  # tests/setup puts it here if the machine has none
OPERATIONS = RULES_FILE.with_name("operations.md")
RULES: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
}

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.M)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
FILLED_IN = re.compile(r"\{\{(.*?)\}\}")
CAN_BE_FILLED_IN = re.compile(r" \$(?:labels\.(\w+)|value(?: \| humanizeDuration)?) ")
OF_A_SCRAPE = {"instance", "job"}
STATES = {"vgpumgr_hosts": set(HostState), "vgpumgr_slices": set(SliceState)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """Returns every metric that agent and API export, with the labels of its samples."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('alerts') / 'vgpumgr.db'}")
    schema.upgrade(database)
    database.run(installation.ensure)
    app = create_app(database)
    cloud = Cloud(database, app)
    with cloud.http, pytest.MonkeyPatch.context() as patched:
        tenant = cloud.tenant("acme", share_permille=300, mem_bytes=1 << 40, slices=10)
        cloud.profile("p", 200)
        cloud.host("h1")
        tenant.post("/v1/slices", {"tenant": "acme", "profile": "p"})
        patched.setattr(figures, "_unbooked_s", lambda _: {"unattributed": 1.0})
        yield _labels(_of_an_agent() + app.state.metrics.text().decode())
    database.close()


def _of_an_agent() -> str:
    state: dict[str, Any] = {
        "observed": observed(
            seen(UUID(int=1)),
            groups=(seen_group(),),
            brokers={"any": ObservedBroker(gpu="any", running=True, current=True, started_ns=1)},
        ),
        "orphans": Orphans(),
        "api_reachable": True,
        "told": {("any", "failed"): 1},
        "executors": {UUID(int=1): Standing(state="running")},
        "unusable": (Unusable(gpu="any", code=Trouble.ABSENT, found="any", todo="any"),),
    }
    numbers = {field.name: 1.0 for field in fields(metrics.State) if field.name not in state}
    return metrics.text(metrics.State(**state, **numbers))


def _labels(text: str) -> Exported:
    found: dict[str, set[str]] = defaultdict(lambda: set(OF_A_SCRAPE))
    for name, said in SAMPLE.findall(text):
        found[name] |= {label for label, _ in LABEL.findall(said)}
    return {name: frozenset(there) for name, there in found.items()}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_what_is_exported_and_says_what_is_left_of_it(name: str, exported: Exported) -> None:
    rule = RULES[name]
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert parse_duration(rule.get("for", "1m"))
    expression = parse(rule["expr"])
    left = labels(expression, exported)
    assert left is not None
    asked = list(selectors(expression))
    assert asked
    for selector in asked:
        for matcher in selector.matchers.matchers:
            assert matcher.name != "state" or matcher.value in STATES[selector.name or ""]
    for text in rule["annotations"].values():
        for filled_in in FILLED_IN.findall(text):
            found = CAN_BE_FILLED_IN.fullmatch(filled_in)
            assert found, filled_in
            assert found[1] is None or found[1] in left


def test_each_says_what_it_should_to_series_that_are_made_up() -> None:
    promtool = shutil.which("promtool") or shutil.which(PROMTOOL)
    assert promtool, (
        "promtool is missing: build/logs/setup.log says why; `rm build/setup/no-promtool` has the next make try again,"
        " or install Debian's package prometheus"
    )
    tried = subprocess.run([promtool, "test", "rules", CASES_FILE], capture_output=True, text=True, timeout=120)
    assert tried.returncode == 0, tried.stdout + tried.stderr


@pytest.mark.parametrize("name", RULES)
def test_each_is_seen_to_fire_and_to_stay_quiet(name: str) -> None:
    cases = yaml.safe_load(CASES_FILE.read_text())["tests"]
    asked = [case for each in cases for case in each["alert_rule_test"] if case["alertname"] == name]
    assert {bool(case.get("exp_alerts")) for case in asked} == {False, True}


SAMPLES: Exported = {
    "a": frozenset({"instance", "slice"}),
    "b": frozenset({"instance", "slice"}),
    "c": frozenset({"instance", "slice", "kind"}),
    "info": frozenset({"instance", "slice", "tenant", "gpu"}),
}


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        ("a", "instance slice"),
        ("rate(c[5m]) > 1", "instance slice kind"),
        ("time() - max_over_time(a[1h] offset 1h)", "instance slice"),
        ("sum(a)", ""),
        ("sum by (kind) (c)", "kind"),
        ("sum without (kind) (c) > 2 * sum without (kind) (c)", "instance slice"),
        ("max without (instance) (sum without (kind) (c))", "slice"),
        ("a == b", "instance slice"),
        ("a / on (slice) c", "slice"),
        ("a / ignoring (kind) c", "instance slice"),
        ("a and on (slice) info", "instance slice"),
        ("c unless on (slice) a", "instance slice kind"),
        ("a or on (slice) info", "instance slice"),
        ("a * on (instance, slice) group_left (tenant) info", "instance slice tenant"),
        ("info * on (instance, slice) group_right (gpu) c", "instance slice kind gpu"),
    ],
)
def test_what_is_left_of_labels(expression: str, left: str) -> None:
    assert labels(parse(expression), SAMPLES) == frozenset(left.split())


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("d > 0", "d is not exported"),
        ('a{kind="x"} > 0', "no sample has kind"),
        ("sum without (kind) (a)", "no sample has kind"),
        ("a * on (instance, slice) group_left (kind) info", "no sample has kind"),
        ("a / on (kind) c", "no sample has kind"),
        ("a / c", "nothing is alike"),
        ("a unless sum without (instance) (a)", "nothing is alike"),
    ],
)
def test_an_expression_that_finds_nothing_is_a_mistake(expression: str, why: str) -> None:
    with pytest.raises(MistakenError, match=why):
        labels(parse(expression), SAMPLES)


def test_each_is_documented_with_its_severity() -> None:
    documented = re.findall(r"^\| `(Vgpumgr\w+)` \| (critical|warning|info) \|", OPERATIONS.read_text(), re.M)
    assert documented == [(name, rule["labels"]["severity"]) for name, rule in RULES.items()]
