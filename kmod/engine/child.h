/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_CHILD_H
#define VGPU_CHILD_H

#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/wait.h>

#include "sched/vgpu_arbiter.h"
#include "uapi/vgpu_lease_page.h"

struct vgpu_device;

/**
 * struct vgpu_child - the kernel's state of one child of an executor
 * @refs: one for its file, one for its slice's list
 * @device: the slice; the child holds a reference to it
 * @window: number of the child's window
 * @opened: value of the window's @opened when the child got the window;
 *	engine->lock
 * @node: node in device->children until the child ends; engine->lock
 * @stream: stream of the child in the arbiter; engine->lock
 * @attached: @stream is in the arbiter; engine->lock
 * @page: struct vgpu_stream_page, which the child writes
 * @wait: where the one reading thread waits; woken under engine->lock
 * @reading: a thread waits in read()
 * @signals: rings and changes of the lease page that were not read yet
 * @ended: no more signals follow; engine->lock to write
 */
struct vgpu_child {
	struct kref refs;
	struct vgpu_device *device;
	u32 window;
	u64 opened;
	struct list_head node;
	struct vgpu_stream stream;
	bool attached;
	struct page *page;
	wait_queue_head_t wait;
	atomic_t reading;
	atomic64_t signals;
	bool ended;
};

static inline struct vgpu_child *vgpu_stream_to_child(struct vgpu_stream *stream)
{
	return container_of(stream, struct vgpu_child, stream);
}

static inline const struct vgpu_stream_page *vgpu_child_says(const struct vgpu_child *child)
{
	return page_address(child->page);
}

struct vgpu_child *vgpu_child_create(struct vgpu_device *device, u32 window);
void vgpu_child_put(struct vgpu_child *child);
void vgpu_child_start(struct vgpu_child *child);
void vgpu_child_end(struct vgpu_child *child);	/* engine->lock held */
struct vgpu_child *vgpu_child_find(struct vgpu_device *device, u32 window);
struct file *vgpu_child_file(struct vgpu_child *child);
struct file *vgpu_lease_file(struct page *page);

/* Wake the child's reader. Any context. */
static inline void vgpu_child_signal(struct vgpu_child *child)
{
	atomic64_inc(&child->signals);
	wake_up_interruptible(&child->wait);
}

#endif /* VGPU_CHILD_H */
