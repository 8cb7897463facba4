# SPDX-License-Identifier: Apache-2.0
"""Faults of the average, of credit and debt, of the trees and of caps."""

from tests.sched.faults.fault import fault

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
        "credit is refilled above burst",
        "bucket.c",
        "if (earned >= bucket->burst_ns - (u64)bucket->credit_ns)",
        "if (0)",
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
        "times are sorted as if they never wrapped",
        "tree.c",
        "link = vgpu_before(node->key, parent->key)",
        "link = node->key < parent->key",
    ),
]
