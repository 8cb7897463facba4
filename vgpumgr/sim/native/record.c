// SPDX-License-Identifier: Apache-2.0
/* Results: arrays that grow, read by numpy. */
#include <stdlib.h>

#include "sim.h"

#define FIRST_ROOM	64

void sim_log_init(struct sim_log *log, u32 size)
{
	memset(log, 0, sizeof(*log));
	log->size = size;
}

/* Return room for one more record, or NULL, which ends the simulation. */
void *sim_log_add(struct sim *sim, struct sim_log *log)
{
	u64 room = log->room ? 2 * log->room : FIRST_ROOM;
	char *data;

	if (log->nr == log->room) {
		data = realloc(log->data, room * log->size);
		if (!data) {
			sim->error = SIM_NO_MEMORY;
			return NULL;
		}
		log->data = data;
		log->room = room;
	}
	return log->data + log->nr++ * log->size;
}

void sim_log_free(struct sim_log *log)
{
	free(log->data);
	log->data = NULL;
}
