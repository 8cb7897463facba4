/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_EXECUTOR_H
#define VGPU_EXECUTOR_H

#include <linux/mutex.h>
#include <linux/ratelimit_types.h>

struct vgpu_binding;

/**
 * struct vgpu_executor - an open file of /dev/vgpumgr-exec
 * @lock: serializes binding; outside all other locks
 * @binding: binding to the slice that the executor serves; set once under @lock
 * @log: rate limit of its lines in the log
 */
struct vgpu_executor {
	struct mutex lock;	/* binding */
	struct vgpu_binding *binding;
	struct ratelimit_state log;
};

/* executor_file.c */
int vgpu_executor_register(void);
void vgpu_executor_unregister(void);

#endif /* VGPU_EXECUTOR_H */
