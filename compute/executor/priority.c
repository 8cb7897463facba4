// SPDX-License-Identifier: Apache-2.0
#include "executor/priority.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>

#define NICE	(-15)

int vgpu_priority_raise(void)
{
	const struct sched_param none = { 0 };

	if (sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none))
		return -errno;
	return setpriority(PRIO_PROCESS, 0, NICE) ? -errno : 0;
}
