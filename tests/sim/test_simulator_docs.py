# SPDX-License-Identifier: Apache-2.0
"""docs/simulator.md is complete: its scenario is valid, and it describes every field, model and figure."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from vgpumgr.sim import schema
from vgpumgr.sim.play import Exclusives, play_all
from vgpumgr.sim.report import LATENCIES, SHARES, report
from vgpumgr.sim.scenario import read
from vgpumgr.sim.workloads import MODELS

TEXT = (Path(__file__).resolve().parents[2] / "docs/simulator.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"`[^`]+`", TEXT))


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for part in get_args(annotation):
        yield from models(part)


def test_the_scenario_of_the_page_meets_its_target() -> None:
    found = re.search(r"\n((?:    .*\n)+)", TEXT[TEXT.index("## A scenario") :])
    assert found is not None
    loaded = read(textwrap.dedent(found[1]), "docs")
    verdicts = report(loaded.scenario, play_all(loaded, exclusives=Exclusives())).verdicts
    assert [(one.tenant, one.met) for one in verdicts] == [("service", True)]


@pytest.mark.parametrize("part", sorted({model.__name__ for model in models(schema.Scenario)} - {"Slice"}))
def test_every_field_is_described(part: str) -> None:
    missing = [name for name in getattr(schema, part).model_fields if not re.search(rf"\b{name}\b", CODE)]
    assert missing == []


def test_every_model_and_column_is_named() -> None:
    assert [name for name in MODELS if f"`{name}`" not in TEXT] == []
    assert [name for name in (*SHARES[1:], *LATENCIES[1:]) if not re.search(rf"^\|.*\b{name}", TEXT, re.M)] == []
