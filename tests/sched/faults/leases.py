# SPDX-License-Identifier: Apache-2.0
"""Faults of leases."""

from tests.sched.faults.fault import fault

FAULTS = [
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
]
