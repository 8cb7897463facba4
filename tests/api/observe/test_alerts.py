# SPDX-License-Identifier: Apache-2.0
"""The alerting rules of docs/alerts.yml ask for what agent and API really export, by labels that its samples have."""

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
from vgpumgr_agent import metrics
from vgpumgr_agent.reconcile import Orphans
from vgpumgr_api.app import create_app
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.services import figures, installation

from tests.agent.test_reconcile import observed, seen, seen_group
from tests.api.http.cloud import Cloud
from vgpumgr.wire.resources import HostState, SliceState

RULES_FILE = Path(__file__).resolve().parents[3] / "docs" / "alerts.yml"
OPERATIONS = RULES_FILE.with_name("operations.md")
RULES: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
}

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.M)
LABEL = re.compile(r'(\w+)=(?:~)?"((?:[^"\\]|\\.)*)"')
SELECTOR = re.compile(r"(\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NO_METRIC = {"and", "or", "unless", "offset", "bool"}
OF_A_SCRAPE = {"instance", "job"}
STATES = {"vgpumgr_hosts": set(HostState), "vgpumgr_slices": set(SliceState)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """Every metric that agent and API export, with the labels of its samples."""
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
        "observed": observed(seen(UUID(int=1)), groups=(seen_group(),)),
        "orphans": Orphans(),
        "api_reachable": True,
        "told": {("any", "failed"): 1},
    }
    numbers = {field.name: 1.0 for field in fields(metrics.State) if field.name not in state}
    return metrics.text(metrics.State(**state, **numbers))


def _labels(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in SAMPLE.findall(text):
        found[name] |= {label for label, _ in LABEL.findall(labels)}
    return found


def _metrics(expression: str) -> set[str]:
    """Whatever an expression names that is neither a function, nor a word of the language, nor a label."""
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", GROUPING.sub("", SELECTOR.sub(r"\1", expression)))
    bare = re.sub(r"\b\d+\w*", "", bare)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)) - NO_METRIC


@pytest.mark.parametrize("name", RULES)
def test_a_rule_asks_for_what_is_exported(name: str, exported: dict[str, set[str]]) -> None:
    expression = RULES[name]["expr"]
    asked = _metrics(expression)
    assert asked
    assert asked <= exported.keys()
    known = OF_A_SCRAPE.union(*(exported[metric] for metric in asked))
    grouped = {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")} - {""}
    assert grouped <= known
    for metric, selected in SELECTOR.findall(expression):
        for label, value in LABEL.findall(selected):
            assert label in exported[metric]
            assert label != "state" or value in STATES[metric]
    said = "".join(RULES[name]["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", said)) <= known


def test_each_is_documented_with_its_severity() -> None:
    documented = re.findall(r"^\| `(Vgpumgr\w+)` \| (critical|warning|info) \|", OPERATIONS.read_text(), re.M)
    assert documented == [(name, rule["labels"]["severity"]) for name, rule in RULES.items()]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_them() -> None:
    subprocess.run(["promtool", "check", "rules", RULES_FILE], check=True)
