# SPDX-License-Identifier: Apache-2.0
"""Faults of runs, groups, items and idle turns."""

from tests.sched.faults.fault import fault

FAULTS = [
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
        "requests do not cover overrun",
        "run.c",
        "return params->splits ? params->min_chunk_ns : params->max_chunk_ns;",
        "return params->splits ? 0 : 0;",
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
        "the group pays, its slice does not",
        "run.c",
        "\towner->stats.run_ns += ns;\n",
        "",
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
        "holding costs no share",
        "run.c",
        "\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
        "\tif (!sched->holding)\n\t\tcharge(&sched->queue, &group->entity, &group->bucket, ns, sched->now_ns);\n",
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
        "a lease without an end uses up the reservation",
        "run.c",
        "if (sched->run_band == VGPU_BAND_LATENCY && !vgpu_lease_is_open(sched)) {",
        "if (sched->run_band == VGPU_BAND_LATENCY) {",
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
