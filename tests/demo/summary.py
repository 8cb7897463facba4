# SPDX-License-Identifier: Apache-2.0
"""The results of a demo: every figure and every check, printed immediately and stored as JSON."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATH = Path("build/demo/summary.json")


@dataclass
class Summary:
    """Figures and checks of one run."""

    figures: dict[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        return round(time.monotonic() - self.started_s, 1)

    def step(self, text: str) -> None:
        print(f"\n[{self.elapsed_s():5.1f} s] {text}", flush=True)

    def check(self, name: str, ok: bool, **details: object) -> None:
        self.checks.append({"check": name, "ok": bool(ok), **details})
        shown = ", ".join(f"{key} {value}" for key, value in details.items())
        print(f"[{'ok' if ok else 'FAILED'}] {name}{': ' if shown else ''}{shown}", flush=True)

    @property
    def ok(self) -> bool:
        return all(check["ok"] for check in self.checks)

    def write(self, path: Path = PATH) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ok": self.ok, "figures": self.figures, "checks": self.checks}, indent=2) + "\n")
