/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_BINDING_H
#define VGPU_BINDING_H

#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/poll.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "uapi/vgpu_exec.h"
#include "uapi/vgpu_lease_page.h"

struct vgpu_device;

/**
 * struct vgpu_binding - an executor that serves a slice whose engine lends
 * @refs: one for its file, and one for @end while that work is queued
 * @device: the slice; the binding holds a reference to it
 * @pid: the process that bound, to be killed if its gate fails
 * @page: struct vgpu_lease_page
 * @wait: where one thread waits for events; woken under engine->lock. If that thread
 *	waits through an epoll that other epolls watch, waking is slow. This is accepted,
 *	because the file comes from root and no child ever gets it
 * @reading: a thread is in read()
 * @end: work that ends the binding, for callers that cannot do so at once
 * @ended: every call fails from now on; protected by engine->lock, like all fields below
 * @gate: requested state of the gate; valid with @gate_sequence
 * @gate_sequence: number of the last request to the gate, 0 for none
 * @gate_told: the executor has read that request
 */
struct vgpu_binding {
	struct kref refs;
	struct vgpu_device *device;
	struct pid *pid;
	struct page *page;
	wait_queue_head_t wait;
	atomic_t reading;
	struct work_struct end;
	bool ended;
	enum vgpu_exec_event_kind gate;
	u64 gate_sequence;
	bool gate_told;
};

static inline struct vgpu_lease_page *vgpu_binding_lease(const struct vgpu_binding *binding)
{
	return page_address(binding->page);
}

/* binding.c */
struct vgpu_binding *vgpu_binding_create(void);
int vgpu_binding_attach(struct vgpu_binding *binding, struct vgpu_device *device);
void vgpu_binding_put(struct vgpu_binding *binding);
void vgpu_binding_release(struct vgpu_binding *binding);
bool vgpu_binding_end(struct vgpu_device *device);	/* engine->lock held */
void vgpu_binding_ask_gate(struct vgpu_device *device, bool close, u64 sequence);
void vgpu_binding_kill(struct vgpu_device *device);
void vgpu_binding_reset(struct vgpu_device *device);

/* binding_file.c */
ssize_t vgpu_binding_read(struct vgpu_binding *binding, struct file *file, char __user *to,
			  size_t count);
__poll_t vgpu_binding_poll(struct vgpu_binding *binding, struct file *file, poll_table *wait);
long vgpu_binding_ioctl(struct vgpu_binding *binding, unsigned int command, void __user *user,
			const char **field);

#endif /* VGPU_BINDING_H */
