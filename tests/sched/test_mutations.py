# SPDX-License-Identifier: Apache-2.0
"""Seeded faults: each breaks one rule in a copy of the core, and the property tests must notice."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from vgpumgr.sched._build import CORE, ROOT

COPIED = ("pyproject.toml", "tests/conftest.py", "tests/sched", "vgpumgr", CORE)
# Tests failed, or the core crashed. Other exit statuses mean that nothing was tested.
NOTICED = (1, -signal.SIGSEGV, -signal.SIGABRT)
PROPERTY_TESTS = (
    "tests/sched/test_stories.py",
    "tests/sched/test_bands.py",
    "tests/sched/test_holds.py",
    "tests/sched/test_ghosts.py",
    "tests/sched/test_entitlement.py",
)


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]


def fault(name: str, file: str, old: str, new: str, *more: tuple[str, str]) -> Fault:
    return Fault(name, file, ((old, new), *more))


CLAMPED_JOIN = """
	{
		u64 most = queue->vtime + to_vtime(entity->timeslice_ns, entity->weight);

		if (vgpu_before(most, entity->node.key))
			entity->node.key = most;
	}
	if ((s64)left <= 0)"""

FAULTS = [
    fault(
        "debt is clamped like credit",
        "queue.c",
        "if (vgpu_before(queue->vtime, entity->node.key))\n\t\tvgpu_tree_insert(&queue->debtors",
        "if (0)\n\t\tvgpu_tree_insert(&queue->debtors",
        ("\n\tif ((s64)left <= 0)", CLAMPED_JOIN),
    ),
    fault(
        "sleepers gain unlimited credit",
        "queue.c",
        "return queue->laps - entity->left_lap > 1 ||\n\t       vgpu_before(",
        "return false && vgpu_before(",
    ),
    fault(
        "credit counts from where V is, not from the furthest it has been",
        "queue.c",
        "*least = queue->vtime_high - to_vtime(",
        "*least = queue->vtime - to_vtime(",
    ),
    fault(
        "the remainder of a charge is forgotten",
        "queue.c",
        "units + entity->remainder, entity->weight",
        "units, entity->weight",
    ),
    fault(
        "idle time is nobody's",
        "run.c",
        "sched->stats.idle_ns += elapsed_ns - (sched->owner ? ns : 0);",
        ";",
    ),
    fault(
        "idle time is charged to the last owner",
        "run.c",
        "\tu64 ns = busy_ns(sched, now_ns);\n\n\tif (!elapsed_ns)",
        "\tu64 ns;\n\n\tif (!sched->owner && !sched->unsold.running)\n"
        "\t\tsched->owner = sched->last_owner;\n"
        "\tns = busy_ns(sched, now_ns);\n\tif (!elapsed_ns)",
    ),
    fault(
        "credit is refilled above burst",
        "bucket.c",
        "if (earned >= bucket->burst_ns - (u64)bucket->credit_ns)",
        "if (0)",
    ),
    fault(
        "the overdraft is forgiven when a throttle ends",
        "group.c",
        "\tvgpu_bucket_refill(bucket, sched->now_ns);\n\tif (bucket->of_group)",
        "\tbucket->credit_ns = bucket->burst_ns;\n\tif (bucket->of_group)",
    ),
    fault(
        "a throttle ends as soon as there is any credit",
        "group.c",
        "return min(timeslice_ns, bucket->burst_ns);",
        "return min(timeslice_ns, (u64)1);",
    ),
    fault(
        "use is not charged to the cap",
        "run.c",
        "\tvgpu_bucket_use(bucket, ns);\n",
        "",
    ),
    fault(
        "the weight of a group is derived from its slices",
        "group.c",
        "\tcount_slice(sched, group, 1);\n",
        "\tcount_slice(sched, group, 1);\n"
        "\tvgpu_queue_set_weight(&sched->queue, &group->entity,\n"
        "\t\t\t      group->params.weight * group->nr_slices);\n",
    ),
    fault(
        "a change of weight changes lag",
        "queue.c",
        "entity->node.key = origin - floor_div(lag, weight);",
        "",
    ),
    fault(
        "an unfinished request loses its deadline",
        "queue.c",
        "if ((s64)left <= 0)",
        "if (1)",
    ),
    fault(
        "requests do not cover overrun",
        "run.c",
        "return params->splits ? params->min_chunk_ns : params->max_chunk_ns;",
        "return params->splits ? 0 : 0;",
    ),
    fault(
        "who is not eligible may be picked",
        "queue.c",
        "vgpu_tree_best(queue->ready, queue->vtime)",
        "vgpu_tree_best(queue->ready, queue->vtime + (1ull << 60))",
    ),
    fault(
        "the earliest virtual runtime goes first, not the earliest deadline",
        "tree.c",
        "\tif (a->rank != b->rank)\n\t\treturn vgpu_before(a->rank, b->rank) ? a : b;",
        "\tif (a->key != b->key)\n\t\treturn vgpu_before(a->key, b->key) ? a : b;",
    ),
    fault(
        "the best of a subtree is not kept up to date",
        "tree.c",
        "\treplace(root, node, heir);\n\trebalance(root, lowest_changed);",
        "\treplace(root, node, heir);",
    ),
    fault(
        "sleepers whose debt is paid stay in the average",
        "queue.c",
        "while ((node = vgpu_tree_first(queue->debtors))) {",
        "while ((node = NULL)) {",
    ),
    fault(
        "a wakeup cuts a run",
        "run.c",
        "if (!run_left_ns(sched))\n\t\t*reason",
        "if (!run_left_ns(sched) || sched->queue.nr_ready > 1)\n\t\t*reason",
    ),
    fault(
        "a new timeslice cuts the present run",
        "run.c",
        "return sched->run_charged_ns < sched->run_timeslice_ns ?\n\t       sched->run_timeslice_ns",
        "u64 timeslice_ns = sched->owner ? sched->owner->group->params.timeslice_ns :\n"
        "\t\t\t\t\t  sched->run_timeslice_ns;\n\n"
        "\treturn sched->run_charged_ns < timeslice_ns ?\n\t       timeslice_ns",
    ),
    fault(
        "times are sorted as if they never wrapped",
        "tree.c",
        "link = vgpu_before(node->key, parent->key)",
        "link = node->key < parent->key",
    ),
    fault(
        "the group pays, its slice does not",
        "run.c",
        "\towner->stats.run_ns += ns;\n",
        "",
    ),
    fault(
        "an overdrawn reservation is given all of its budget again",
        "reserve.c",
        "if (due_ns >= params->reserve_ns - (u64)reserve->budget_ns)",
        "if (1)",
    ),
    fault(
        "every wakeup renews the budget",
        "reserve.c",
        "(reserve->deadline_ns - now_ns) * params->reserve_ns)",
        "0)",
    ),
    fault(
        "a weight may take the share of a reservation",
        "reserve.c",
        "if (weight > most_weight_of_others(sched, group))",
        "if (0)",
    ),
    fault(
        "band L waits for the end of the timeslice",
        "run.c",
        "return first && (sched->run_band == VGPU_BAND_FAIR ||",
        "return first && (",
    ),
    fault(
        "time in band L does not count in the fair band",
        "run.c",
        "\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
        "\tif (sched->run_band == VGPU_BAND_FAIR)\n"
        "\t\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
    ),
    fault(
        "a run that was cut begins anew",
        "run.c",
        "reason == VGPU_RUN_LATENCY ? run_left_ns(sched) : 0;",
        "0;",
    ),
    fault(
        "hold is free",
        "run.c",
        "\tif (sched->run_band == VGPU_BAND_LATENCY)\n\t\tvgpu_reserve_use",
        "\tif (sched->run_band == VGPU_BAND_LATENCY && !sched->holding)\n\t\tvgpu_reserve_use",
    ),
    fault(
        "a hold begins after any item",
        "hold.c",
        "return !slice->more || !group",
        "return !group",
    ),
    fault("inversion costs no budget", "hold.c", "\t\tvgpu_bucket_use(&group->inversion, ns);\n", ""),
    fault(
        "the gate stays open on an overdrawn budget",
        "hold.c",
        " || group->inversion.credit_ns < 0)",
        ")",
    ),
    fault(
        "a hint is believed",
        "predict.c",
        "return max(group->sched->params.max_chunk_ns, item->hint_ns);",
        "return item->hint_ns ? item->hint_ns : group->sched->params.max_chunk_ns;",
    ),
    fault(
        "all tenants share one table of predictions",
        "predict.c",
        "static u32 place(",
        "static struct vgpu_predictor shared;\n\nstatic u32 place(",
        ("if (is_at(&group->predictor, place(id, i), id))", "if (is_at(&shared, place(id, i), id))"),
        ("return &group->predictor.kernels[place(id, i)];", "return &shared.kernels[place(id, i)];"),
        (
            "count(find_or_make(&group->predictor, kernel_id)->duration, ns);",
            "count(find_or_make(&shared, kernel_id)->duration, ns);",
        ),
    ),
    fault("parked ghosts pay nothing", "ghost.c", "\tsched->parked_ns += part_ns;\n", ""),
    fault(
        "the turn of who idles is given away",
        "group.c",
        "bool wanted = slice->has_item || vgpu_has_ghosts(sched);",
        "bool wanted = slice->has_item;",
    ),
    fault(
        "a ghost gives its turn back",
        "run.c",
        "return vgpu_has_ghosts(sched) ? !sched->nr_with_item :\n\t\t\t\t\t!sched->owner",
        "return vgpu_has_ghosts(sched) ? !sched->owner->has_item :\n\t\t\t\t\t!sched->owner",
    ),
]
QUICK = {"sleepers gain unlimited credit", "every wakeup renews the budget"}


def copy_with(fault: Fault, target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignore = shutil.ignore_patterns("*.so", "*.o", "__pycache__", ".*")
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copyfile(source, target / name)
    path = target / CORE / fault.file
    text = path.read_text()
    for old, new in fault.edits:
        assert text.count(old) == 1, f"cannot seed {fault.name!r}: the source has changed"
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[] if fault.name in QUICK else [pytest.mark.long],
        )
        for fault in FAULTS
    ],
)
def test_the_property_tests_notice(fault: Fault, tmp_path: Path) -> None:
    copy_with(fault, tmp_path)
    done = run_property_tests(tmp_path)
    assert done.returncode in NOTICED, done.stdout + done.stderr


@pytest.mark.long
def test_they_have_nothing_to_say_about_a_faultless_copy(tmp_path: Path) -> None:
    copy_with(Fault("none", "tree.c", ()), tmp_path)
    done = run_property_tests(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def run_property_tests(copy: Path) -> subprocess.CompletedProcess[str]:
    tests = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "--hypothesis-profile=mutation"),
        *PROPERTY_TESTS,
    ]
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(tests, cwd=copy, env=env, capture_output=True, text=True, timeout=900)
