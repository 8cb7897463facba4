/* SPDX-License-Identifier: GPL-2.0 */
/* The engine "exec", watched while it waits for executors. */
#ifndef KFUZZ_LEND_H
#define KFUZZ_LEND_H

#include "sim.h"

#include "engine.h"

/* Grants, by how long the one before took; of those after a brief one, those that were not. */
struct lend_counts {
	u64 after_long, after_brief, no_longer_brief;
};

extern struct lend_counts lend_counts;

const struct vgpu_engine_ops *lend_engine(void);

#endif /* KFUZZ_LEND_H */
