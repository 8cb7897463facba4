/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_WINDOW_H
#define VGPU_WINDOW_H

#include <linux/fs.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "uapi/vgpu_device.h"

struct vgpu_child;
struct vgpu_device;
struct vgpu_exec_event;

#define VGPU_WINDOW_BYTES	(4U << 20)
#define VGPU_BAR2_BYTES		(VGPU_WINDOWS_MAX * VGPU_WINDOW_BYTES)

/**
 * struct vgpu_window - memory that one guest process shares with one child
 * @memory: while the device is open, a file for this window alone, so that a process that
 *	maps it can map nothing else
 * @state: enum vgpu_window_state
 * @opened: how often it was opened or got a child, so that reports about an earlier time can
 *	be recognized
 * @given: another file of the same memory, given to a child that was not reported gone yet.
 *	While a process has this file open or mapped, the file or its dentry has more
 *	references
 * @told: the executor knows @state
 * @child: the child to signal
 */
struct vgpu_window {
	struct file *memory;
	u32 state;
	u64 opened;
	struct file *given;
	bool told;
	struct vgpu_child *child;
};

/**
 * struct vgpu_windows - BAR2 of one slice
 * @lock: protects all members; taken inside engine->lock
 * @window: the windows
 * @events: bit n: window n has an event, and the guest has not read this bit yet
 */
struct vgpu_windows {
	spinlock_t lock;	/* all members below */
	struct vgpu_window window[VGPU_WINDOWS_MAX];
	u32 events;
};

void vgpu_windows_init(struct vgpu_device *device);
void vgpu_windows_free(struct vgpu_device *device);
bool vgpu_windows_offered(const struct vgpu_device *device);
int vgpu_windows_open(struct vgpu_device *device);
void vgpu_windows_reset(struct vgpu_device *device);
void vgpu_windows_close(struct vgpu_device *device);

/* Called for the guest's registers; state_lock held */
u32 vgpu_windows_states(struct vgpu_device *device);
u32 vgpu_windows_take_events(struct vgpu_device *device);
void vgpu_window_open(struct vgpu_device *device, u32 number);
void vgpu_window_close(struct vgpu_device *device, u32 number);
void vgpu_window_bell(struct vgpu_device *device, u32 number);

/* Used by both sides of a window */
bool vgpu_windows_note(struct vgpu_windows *windows, u32 bits);	/* windows->lock held */
void vgpu_window_finish(struct vgpu_device *device, u32 number, bool notify);

/* Called for the VMM's mapping of the region */
int vgpu_window_mmap(struct vgpu_device *device, u64 offset, struct vm_area_struct *vma);

/* engine/window_executor.c: called for an executor */
bool vgpu_windows_event(struct vgpu_device *device, struct vgpu_exec_event *event);
void vgpu_window_told(struct vgpu_device *device, const struct vgpu_exec_event *event);
bool vgpu_windows_have_event(struct vgpu_device *device);
void vgpu_windows_tell_again(struct vgpu_device *device);
struct file *vgpu_window_offer(struct vgpu_device *device, u32 number);
int vgpu_window_serve(struct vgpu_device *device, struct vgpu_child *child, struct file *given);
bool vgpu_window_may_end(struct vgpu_device *device, u32 number, bool closing,
			 u64 *opened);
bool vgpu_window_is_held(struct vgpu_device *device, u32 number, u64 opened);
int vgpu_window_lose(struct vgpu_device *device, u32 number, u64 opened);
int vgpu_window_free(struct vgpu_device *device, u32 number, u64 opened);
int vgpu_window_ring(struct vgpu_device *device, u32 number);
bool vgpu_windows_abandon(struct vgpu_device *device);	/* engine->lock held */

#endif /* VGPU_WINDOW_H */
