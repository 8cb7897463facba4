# SPDX-License-Identifier: Apache-2.0
"""Seeded faults: each breaks one rule in a copy of the core, and the tests of the normal lane must notice."""

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
TESTS = (
    "tests/sched/test_calls.py",
    "tests/sched/test_bands.py",
    "tests/sched/test_holds.py",
    "tests/sched/test_ghosts.py",
    "tests/sched/test_fuzz.py",
    "tests/sched/test_attacks.py",
    "tests/sched/test_stories.py",
    "tests/sched/test_entitlement.py",
    "tests/sched/test_leases.py",
    "tests/sched/test_sleepers.py",
    "tests/sched/test_lease_stories.py",
)


@dataclass(frozen=True)
class Fault:
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]


def fault(name: str, file: str, old: str, new: str, *more: tuple[str, str]) -> Fault:
    return Fault(name, file, ((old, new), *more))


CLAMPED_JOIN = """\tentity->node.key = joining_key(queue, entity, &queue->credit);
	{
		u64 most = queue->vtime + to_vtime(entity->timeslice_ns, entity->weight);

		if (vgpu_before(most, entity->node.key))
			entity->node.key = most;
	}
"""

FAULTS = [
    fault(
        "debt is clamped like credit",
        "queue.c",
        "if (vgpu_before(queue->vtime, entity->node.key))\n\t\tvgpu_tree_insert(&queue->debtors",
        "if (0)\n\t\tvgpu_tree_insert(&queue->debtors",
        ("\tentity->node.key = joining_key(queue, entity, &queue->credit);\n", CLAMPED_JOIN),
    ),
    fault(
        "sleepers gain unlimited credit",
        "queue.c",
        "return queue->laps - entity->left_lap > 1 ||\n\t       vgpu_before(",
        "return false && vgpu_before(",
        ("\tif (queue->vtime_high - key > most)\n", "\tif (0)\n"),
    ),
    fault(
        "each sleeper that returns has a credit of its own",
        "queue.c",
        "\tif (queue->vtime_high - key > most)\n",
        "\tif (0)\n",
    ),
    fault(
        "only the credit that is out is bounded",
        "queue.c",
        "\t*pool = min(*pool, room_units(queue, entity->timeslice_ns));\n",
        "\t*pool = room_units(queue, entity->timeslice_ns);\n",
    ),
    fault(
        "the pool of credit grows by the weight of everybody",
        "queue.c",
        "to_credit(queue->vtime_high - queue->credit_mark, queue->asleep);",
        "to_credit(queue->vtime_high - queue->credit_mark, queue->asleep + queue->weight);",
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
        "\tu64 ns = busy_ns(sched, now_ns);\n\tu64 unused_ns;\n\n\tif (!elapsed_ns)",
        "\tu64 ns, unused_ns;\n\n\tif (!sched->owner && !sched->unsold.running)\n"
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
        "who returns goes on with the rest of its request",
        "queue.c",
        "\t\tif (!entity->running)\n\t\t\tnew_request(queue, entity);\n",
        "\t\tif (!entity->running && !vgpu_before(entity->node.key, entity->node.rank))\n"
        "\t\t\tnew_request(queue, entity);\n",
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
        "if (!vgpu_run_left_ns(sched))\n\t\t*reason",
        "if (!vgpu_run_left_ns(sched) || sched->queue.nr_ready > 1)\n\t\t*reason",
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
        "reason == VGPU_RUN_LATENCY ? vgpu_run_left_ns(sched) : 0;",
        "0;",
    ),
    fault(
        "hold is free",
        "run.c",
        "\t\tvgpu_reserve_use(sched, group, ns);\n",
        "\t\tif (!sched->holding)\n\t\t\tvgpu_reserve_use(sched, group, ns);\n",
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
    fault(
        "places outlive their policy",
        "ghost.c",
        "\tif (group && vgpu_has_ghosts(sched))\n",
        "\tif (!vgpu_has_ghosts(sched))\n\t\treturn;\n\tif (group)\n",
    ),
    fault(
        "a group of many slices has one ghost",
        "ghost.c",
        "max(group->nr_slices, 1u));",
        "1);",
    ),
    fault(
        "places that are not sold are given away",
        "ghost.c",
        "vgpu_queue_set_ready(&sched->queue, &sched->unsold, places > sold);",
        "vgpu_queue_set_ready(&sched->queue, &sched->unsold, false);",
    ),
    fault("what parking cannot divide is lost", "ghost.c", "return ns - part_ns * sched->nr_slices;", "return 0;"),
    fault(
        "more is reserved than the limit",
        "reserve.c",
        "\tif (ppm > limit_ppm)\n",
        "\tif (0)\n",
    ),
    fault(
        "a reservation may exceed the share",
        "reserve.c",
        " || weight > most_weight(params) ||\n",
        " ||\n",
    ),
    fault(
        "who is out of budget waits for ever",
        "reserve.c",
        "while ((node = vgpu_tree_first(sched->demoted)) &&",
        "while ((node = NULL) &&",
    ),
    fault(
        "a departed reservation stays counted",
        "reserve.c",
        "\tsched->reserved_ppm -= bandwidth_ppm(&group->params);\n",
        "",
    ),
    fault(
        "a new reservation begins with what was left of another",
        "reserve.c",
        "if (!kept || (s64)params->reserve_ns < reserve->budget_ns)",
        "if (!kept)",
    ),
    fault(
        "a hold has no end",
        "hold.c",
        "if (is_over(slice) ||\n\t    sched->now_ns - sched->hold.since_ns >= slice->group->params.hold_max_ns)",
        "if (is_over(slice))",
    ),
    fault(
        "a hold goes on without budget",
        "hold.c",
        "group->nr_with_item || group->reserve.budget_ns <= 0 ||",
        "group->nr_with_item ||",
        ("\tns = min_t(u64, ns, group->reserve.budget_ns);\n", ""),
    ),
    fault(
        "the gate forgets how much of the gap is over",
        "hold.c",
        "\telapsed_ns = sched->now_ns - holder->done_at_ns;",
        "\telapsed_ns = 0;",
    ),
    fault(
        "a piece counts as a whole item that was begun",
        "hold.c",
        "return ns > slice->item_ns ? min(ns - slice->item_ns, longest_ns) :",
        "return ns ? min(ns, longest_ns) :",
    ),
    fault(
        "holding costs no share",
        "run.c",
        "\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
        "\tif (!sched->holding)\n\t\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
    ),
    fault(
        "anybody may hold",
        "hold.c",
        "return !slice->more || !group->params.hold_max_ns ||\n"
        "\t       group->nr_with_item || group->reserve.budget_ns <= 0 ||",
        "return !slice->more || group->nr_with_item ||",
        ("if (is_over(slice) || held_ns >= group->params.hold_max_ns)", "if (is_over(slice))"),
        ("ns = group->params.hold_max_ns - held_ns;", "ns = VGPU_HOLD_MAX_NS - held_ns;"),
        ("since_ns >= slice->group->params.hold_max_ns)", "since_ns >= VGPU_HOLD_MAX_NS)"),
        ("\tns = min_t(u64, ns, group->reserve.budget_ns);\n", ""),
    ),
    fault(
        "one sample is enough for a prediction",
        "predict.c",
        "return samples >= VGPU_PREDICT_SAMPLES;",
        "return samples >= 1;",
    ),
    fault(
        "a prediction is the shortest, not the longest",
        "predict.c",
        "\twhile (!kernel->duration[bucket])\n\t\tbucket--;",
        "\tfor (bucket = 0; !kernel->duration[bucket];)\n\t\tbucket++;",
    ),
    fault(
        "gaps that are over still count",
        "predict.c",
        "if (!gaps[i] || end_ns(i) <= elapsed_ns)\n\t\t\tcontinue;\n"
        "\t\tstart_ns = vgpu_hist_bucket_start_ns(i);\n"
        "\t\tleft_ns = start_ns > elapsed_ns ? start_ns - elapsed_ns : 0;\n\t\tsamples",
        "if (!gaps[i])\n\t\t\tcontinue;\n\t\tstart_ns = vgpu_hist_bucket_start_ns(i);\n"
        "\t\tleft_ns = start_ns > elapsed_ns ? start_ns - elapsed_ns : 0;\n\t\tsamples",
    ),
    fault(
        "a full count begins at nothing",
        "predict.c",
        "\tif (counts[bucket] == COUNT_MAX)\n\t\tfor (i = 0; i < VGPU_PREDICT_BUCKETS; i++)\n\t\t\tcounts[i] /= 2;",
        "\t(void)i;",
    ),
    fault(
        "the newest of four kernels makes room",
        "predict.c",
        "if (age(predictor, at) > age(predictor, oldest))",
        "if (age(predictor, at) < age(predictor, oldest))",
    ),
    fault(
        "time is learnt of the next item, too",
        "item.c",
        "\tslice->item_ns = 0;\n\tvgpu_slice_describe(sched, slice, next);",
        "\tvgpu_slice_describe(sched, slice, next);",
    ),
    fault(
        "a ring for what is there renews the budget",
        "group.c",
        "\tif (slice->has_item == has_item)\n\t\treturn;",
        "\tif (has_item)\n\t\tvgpu_reserve_wake(slice->group, sched->now_ns);\n"
        "\tif (slice->has_item == has_item)\n\t\treturn;",
    ),
    fault(
        "short pieces are free",
        "run.c",
        "\tvgpu_queue_charge(queue, entity, ns);\n\tvgpu_bucket_use",
        "\tif (ns > 25000)\n\t\tvgpu_queue_charge(queue, entity, ns);\n\tvgpu_bucket_use",
    ),
    fault(
        "a look at an unknown group passes time",
        "group.c",
        "\tif (group_fault(sched, group))\n\t\treturn 0;\n\tvgpu_sched_advance(sched, now_ns);",
        "\tvgpu_sched_advance(sched, now_ns);\n\tif (group_fault(sched, group))\n\t\treturn 0;",
    ),
    fault(
        "a refused removal is half done",
        "group.c",
        "\tif (!fault && group->nr_slices)\n",
        "\tdisarm(sched, &group->bucket);\n\tif (!fault && group->nr_slices)\n",
    ),
    fault(
        "band L leaves the timeslice in the fair band as it was",
        "run.c",
        "left_ns > sched->run_charged_ns ? left_ns - sched->run_charged_ns : 0;",
        "group->rest_ns;",
    ),
    fault(
        "who slept goes on with the rest of a timeslice",
        "group.c",
        "\t\tgroup->rest_ns = 0;\n",
        "\t\t;\n",
    ),
    fault(
        "what a reservation may overdraw is not counted",
        "reserve.c",
        "return params->splits ? 0 : params->max_chunk_ns;",
        "return 0;",
    ),
    fault(
        "a hold is taken by the last to run dry",
        "hold.c",
        "if (sched->hold.slice || is_over(slice))",
        "if (is_over(slice))",
    ),
    fault(
        "cuts are free",
        "run.c",
        "vgpu_reserve_use(sched, group, sched->params.switch_cost_ns);",
        "vgpu_reserve_use(sched, group, 0);",
    ),
    fault(
        "new terms leave the present hold as it was",
        "group.c",
        "\tvgpu_group_refresh(sched, group);\n\tvgpu_lease_recall(sched);\n\tvgpu_hold_bound(sched);\n",
        "\tvgpu_group_refresh(sched, group);\n\tvgpu_lease_recall(sched);\n",
    ),
    fault(
        "a lease is prolonged whoever waits",
        "lease.c",
        "\tif (funds_ns <= left_ns || !is_kept(sched))\n",
        "\tif (funds_ns <= left_ns)\n",
    ),
    fault(
        "a rival does not bring the end of a prolonged lease back",
        "lease.c",
        "\tif (!loan->lent || !loan->kept)\n",
        "\tif (1)\n",
    ),
    fault(
        "a lease without an end stays so when somebody comes",
        "lease.c",
        "\treturn sched->queue.nr_ready == 1 && owner->group->queue.nr_ready == 1 &&\n",
        "\treturn (sched->loan.open || (sched->queue.nr_ready == 1 && owner->group->queue.nr_ready == 1)) &&\n",
    ),
    fault(
        "a lease outlasts its cap",
        "lease.c",
        "\tu64 end_ns = sched->now_ns + min(left_ns, funds_ns);\n",
        "\tu64 end_ns = sched->now_ns + left_ns;\n",
    ),
    fault(
        "band L waits for the end of a lease",
        "lease.c",
        "\tif (vgpu_run_is_due_to_others(sched))\n\t\tsched->loan.until_ns",
        "\tif (0)\n\t\tsched->loan.until_ns",
    ),
    fault(
        "a lease without an end uses up the reservation",
        "run.c",
        "if (sched->run_band == VGPU_BAND_LATENCY && !vgpu_lease_is_open(sched)) {",
        "if (sched->run_band == VGPU_BAND_LATENCY) {",
    ),
    fault(
        "a lease is charged until the next decision, not until the yield",
        "lease.c",
        "\tsched->busy_until_ns = sched->now_ns;\n\tsched->busy_bounded = true;\n",
        "",
    ),
    fault(
        "nobody need pay for a lease with an end",
        "lease.c",
        "if (vgpu_lease_is_open(sched) && !vgpu_has_ghosts(sched))",
        "if (sched->loan.lent)",
    ),
    fault(
        "a debt leaves the caps alone",
        "lease.c",
        "\tvgpu_slice_overdraw(sched, slice, ns);\n",
        "",
    ),
    fault(
        "a debt leaves the virtual time alone",
        "lease.c",
        "\tvgpu_queue_owe(&sched->queue, &group->entity, ns);\n",
        "",
    ),
    fault(
        "a filler's lease outlasts the gap",
        "lease.c",
        "\t\tend_ns = vgpu_earlier(end_ns, loan->gap_end_ns);\n",
        "\t\t;\n",
    ),
    fault(
        "a throttle that began within a lease ends too early",
        "group.c",
        "\trearm(sched, bucket);\n\tif (bucket->throttled || ",
        "\tif (bucket->throttled || ",
    ),
    fault(
        "runs at whose end nobody looked are not counted",
        "run.c",
        "\tcount_runs(group, runs - 1, timeslice_ns, timeslice_ns, reason);\n",
        "",
    ),
]
QUICK = {"every wakeup renews the budget"}


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
def test_the_tests_notice(fault: Fault, tmp_path: Path) -> None:
    copy_with(fault, tmp_path)
    done = run_tests(tmp_path)
    assert done.returncode in NOTICED, done.stdout + done.stderr


@pytest.mark.long
def test_they_have_nothing_to_say_about_a_faultless_copy(tmp_path: Path) -> None:
    copy_with(Fault("none", "tree.c", ()), tmp_path)
    done = run_tests(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def run_tests(copy: Path) -> subprocess.CompletedProcess[str]:
    tests = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long"),
        "--hypothesis-profile=mutation",
        *TESTS,
    ]
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(tests, cwd=copy, env=env, capture_output=True, text=True, timeout=900)
