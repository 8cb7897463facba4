# SPDX-License-Identifier: Apache-2.0
"""Faults of reservations, holds and predictions."""

from tests.sched.faults.fault import fault

FAULTS = [
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
]
