/* SPDX-License-Identifier: GPL-2.0 */
/* Processes of the host that open /dev/vgpumgr-exec and do anything with it. */
#ifndef KFUZZ_PROCESS_H
#define KFUZZ_PROCESS_H

#include "sim.h"

struct process_counts {
	u64 attached, granted, completed, revoked, ended, for_nothing, told;
};

extern struct process_counts process_counts;

void process_step(void);	/* one of them does one thing */
void process_end(void);		/* all of them end */

#endif /* KFUZZ_PROCESS_H */
