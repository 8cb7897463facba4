# SPDX-License-Identifier: Apache-2.0
"""Results of a role for many sets of variables from one run of ansible, whose start alone takes a second.

Each function takes the variables of each case and returns its result, by the case's name.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Cases = Mapping[str, Mapping[str, Any]]


def written(template: Path, defaults: Path, cases: Cases, directory: Path) -> dict[str, str]:
    """Returns the result of `template` for each case, over the `defaults` of its role."""
    source = f"{{{{ lookup('ansible.builtin.template', '{template}') }}}}"
    tasks = [{"ansible.builtin.set_fact": {name: source}, "vars": dict(given)} for name, given in _facts(cases)]
    return _ran(tasks, cases, directory, vars_files=[str(defaults)])


def refused(tasks: Path, cases: Cases, directory: Path) -> dict[str, str]:
    """Returns the error of the file `tasks` for each case; "" if there is none."""
    blocks = [
        {
            "vars": dict(given),
            "block": [{"ansible.builtin.import_tasks": str(tasks)}, {"ansible.builtin.set_fact": {name: ""}}],
            "rescue": [{"ansible.builtin.set_fact": {name: "{{ ansible_failed_result.msg }}"}}],
        }
        for name, given in _facts(cases)
    ]
    return _ran(blocks, cases, directory)


def _facts(cases: Cases) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((f"case_{number}", given) for number, given in enumerate(cases.values()))


def _ran(tasks: list[dict[str, Any]], cases: Cases, directory: Path, **more: Any) -> dict[str, str]:
    playbook, output = directory / "play.json", directory / "facts.json"
    facts = [f"{{{{ {name} }}}}" for name, _ in _facts(cases)]
    kept = {
        "ansible.builtin.copy": {"content": "{{ facts | to_json }}", "dest": str(output), "mode": "0600"},
        "vars": {"facts": facts},
    }
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "tasks": [*tasks, kept],
    }
    playbook.write_text(json.dumps([play | more]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=localhost,", "--connection=local"]
    done = subprocess.run([*command, str(playbook)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(cases, json.loads(output.read_text()), strict=True))
