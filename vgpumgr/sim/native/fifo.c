// SPDX-License-Identifier: Apache-2.0
/*
 * "fifo": one queue of kernels for all clients, in the order of their launches.
 * This models processes that share one context and stream (an MPS server
 * without limits, or a naive proxy), and the "GPU sharing mode" that FIKIT
 * compares itself with (arXiv 2311.10359).  A kernel that has begun is
 * finished.
 */
#include "schedulers.h"

static void fifo_pick(struct sim *sim, struct sim_decision *decision)
{
	decision->slice = sim_oldest_launch(sim, NULL);
}

const struct sim_scheduler sim_fifo = {
	.name = "fifo",
	.pick = fifo_pick,
};
