/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_EXECUTOR_H
#define VGPU_EXECUTOR_H

#include <linux/seqlock.h>

#include "uapi/vgpu_exec.h"
#include "vgpu.h"

struct vgpu_channel;

/**
 * enum vgpu_grant_state - where the grant of an executor is
 * @VGPU_GRANT_NONE: there is none; one can be offered
 * @VGPU_GRANT_OFFERED: the engine waits, the executor has not looked
 * @VGPU_GRANT_TAKEN: the engine waits for the executor
 * @VGPU_GRANT_DONE: the executor has completed it, the engine has not looked
 * @VGPU_GRANT_REVOKED: the engine waits no more, the executor has not answered
 */
enum vgpu_grant_state {
	VGPU_GRANT_NONE,
	VGPU_GRANT_OFFERED,
	VGPU_GRANT_TAKEN,
	VGPU_GRANT_DONE,
	VGPU_GRANT_REVOKED,
};

/**
 * struct vgpu_executor - an open file of /dev/vgpumgr-exec
 * @refs: the file, and the engine while it waits for it
 * @lock: one attaches, reads or writes bytes at a time; may be held over a page fault,
 *	outside all other locks
 * @device: what it is attached to, with a reference; set once under @lock
 * @binding: the slice that it is bound to, if the engine lends, instead of @device and all
 *	below; set once under @lock
 * @log: how often the log is told of it
 * @wait: for grants, bytes and the end
 * @notifier: wakes all in @wait, from attaching until the file is closed
 * @pending: @notifier has something to do
 * @changes: of @channel to @grant, which the executor looks at without engine->lock; valid
 *	once attached
 * @channel: whose bytes it may move, with a reference; set once; engine->lock
 * @ended: every call fails from now on; engine->lock, as all below
 * @state: of the grant
 * @grant: as the executor is told of it
 * @status: of a grant that is done
 * @result: of a grant that is done
 * @brief: its last grant was over before VGPU_ENGINE_BRIEF_NS; engine thread only
 */
struct vgpu_executor {
	struct kref refs;
	struct mutex lock;	/* attaching, bytes */
	struct vgpu_device *device;
	struct vgpu_binding *binding;
	struct ratelimit_state log;
	wait_queue_head_t wait;
	struct task_struct *notifier;
	bool pending;
	seqcount_spinlock_t changes;
	struct vgpu_channel *channel;
	bool ended;
	enum vgpu_grant_state state;
	struct vgpu_exec_grant grant;
	u32 status;
	u64 result;
	bool brief;
};

/**
 * struct vgpu_executor_view - what an executor can do, of one moment
 * @channel: as of struct vgpu_executor, like all below
 * @ended: every call fails
 * @state: of the grant
 * @grant: as the executor is told of it
 */
struct vgpu_executor_view {
	struct vgpu_channel *channel;
	bool ended;
	enum vgpu_grant_state state;
	struct vgpu_exec_grant grant;
};

/* executor.c */
struct vgpu_executor *vgpu_executor_create(void);
void vgpu_executor_put(struct vgpu_executor *executor);
void vgpu_executor_connect(struct vgpu_device *device);	/* engine->lock held */
void vgpu_executor_end(struct vgpu_device *device);	/* engine->lock held */
void vgpu_device_dismiss(struct vgpu_device *device);	/* engine->lock held */
bool vgpu_executor_serves(const struct vgpu_device *device);	/* engine->lock held */
void vgpu_executor_wake(struct vgpu_device *device);
int vgpu_executor_attach(struct vgpu_executor *executor, const guid_t *uuid);
void vgpu_executor_release(struct vgpu_executor *executor);
void vgpu_executor_look(struct vgpu_executor *executor, struct vgpu_executor_view *view);
void vgpu_executor_take(struct vgpu_executor *executor, u64 number);
int vgpu_executor_complete(struct vgpu_executor *executor,
			   const struct vgpu_exec_complete *complete);

/* executor_notifier.c */
struct task_struct *vgpu_executor_start(struct vgpu_executor *executor, const guid_t *uuid);
void vgpu_executor_notify(struct vgpu_executor *executor);	/* engine->lock held */

/* executor_file.c */
int vgpu_executor_register(void);
void vgpu_executor_unregister(void);

#endif /* VGPU_EXECUTOR_H */
