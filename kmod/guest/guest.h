/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vgpumgr guest driver: declarations shared by its files.
 *
 * main.c binds the PCI function, ring.c accesses the device, area.c owns the operand
 * memory, file.c implements /dev/vgpuN. windows.c manages the windows of the device,
 * window.c implements the calls on one window, and space.c the address space of its
 * mappings. window_node.c implements /dev/vgpuN-compute, and window_attrs.c its
 * attributes.
 *
 * Lifetime: the binding, the open file and struct vgpu_windows each hold a reference to
 * struct vgpu_guest. The binding, the node and each open window hold a reference to
 * struct vgpu_windows. The device, the DMA memory and BAR2 belong to the binding: code
 * that uses them holds @lock and has checked under it that @gone is false, or that the
 * window's error is zero.
 *
 * Lock order: mmap_lock, then vgpu_guest_area.lock or vgpu_window.lock, under which
 * page tables are allocated; vgpu_guest.lock, then one of these, or the i_mmap_rwsem of
 * a window's address space. User memory is never accessed under a lock of this driver,
 * so unbinding never waits for a user's page fault. mmap and page faults never take
 * vgpu_guest.lock.
 */
#ifndef _VGPU_GUEST_GUEST_H
#define _VGPU_GUEST_GUEST_H

#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/wait.h>

#include "vgpu_device.h"
#include "vgpu_guest.h"

#define VGPU_GUEST_PIECES	(VGPU_GUEST_AREA_BYTES / VGPU_GUEST_PIECE_BYTES)

/**
 * struct vgpu_guest_area - operand memory of the open file
 * @lock: protects everything below
 * @dev: device the pieces are mapped for, NULL when unbound
 * @pages: compound page of each piece, NULL where none was mapped yet
 * @bus: bus address of each piece
 */
struct vgpu_guest_area {
	struct mutex lock; /* everything below */
	struct device *dev;
	struct page *pages[VGPU_GUEST_PIECES];
	dma_addr_t bus[VGPU_GUEST_PIECES];
};

/**
 * struct vgpu_slot - one window of a device
 * @wait: where waiters and pollers of the window wait; woken in interrupts
 * @events: how often the device has reported an event of this window
 * @owner: the open file that has this window, or NULL; vgpu_guest.lock
 */
struct vgpu_slot {
	wait_queue_head_t wait;
	atomic_t events;
	struct vgpu_window *owner;
};

/**
 * struct vgpu_windows - the windows of a device
 * @node: /dev/vgpuN-compute; a reference to @node is a reference to this structure
 * @cdev: character device of @node
 * @guest: device that has the windows
 * @memory: BAR2, while bound
 * @start: start of BAR2, as the processor sees it
 * @count: number of windows
 * @bytes: size of each window
 * @slots: the windows
 */
struct vgpu_windows {
	struct device node;
	struct cdev cdev;
	struct vgpu_guest *guest;
	void *memory;
	phys_addr_t start;
	u32 count;
	u32 bytes;
	struct vgpu_slot slots[VGPU_WINDOWS_MAX];
};

/**
 * struct vgpu_window - an open file that has a window
 * @windows: windows of the device
 * @space: inode whose address space has the mappings
 * @rings: how often a process has called RING on this file
 * @number: number of the window
 * @seen: @events of the window when its state was last read
 * @lost: the window's child has ended
 * @lock: makes a page fault see @error
 * @error: why the file has no window any more, or zero. Written under both locks
 *
 * vgpu_guest.lock protects the mutable fields from @number on.
 */
struct vgpu_window {
	struct vgpu_windows *windows;
	struct inode *space;
	atomic_t rings;
	u32 number;
	u32 seen;
	bool lost;
	struct mutex lock; /* orders page faults and the window's end */
	int error;
};

/**
 * struct vgpu_guest - one bound function
 * @ref: the binding and the open file
 * @misc: the character device
 * @name: name of @misc
 * @id: the N of /dev/vgpuN
 * @pdev: the function
 * @bar: BAR0
 * @area: operand memory
 * @windows: windows of the device, NULL if it has none; set while bound
 * @wait: woken by interrupts, reset and removal
 * @interrupts: completion interrupts
 * @error_interrupts: error interrupts
 * @lock: protects the device and everything below
 * @gone: the device must not be touched any more
 * @opened: a file is open
 * @entries: ring entries, a power of two
 * @ring: submission ring
 * @ring_bus: bus address of @ring
 * @completions: completion ring
 * @completions_bus: bus address of @completions
 * @shadow: counters the device copies to memory
 * @shadow_bus: bus address of @shadow
 * @tail: items submitted since reset
 * @read: completions collected since reset
 * @min_outstanding: see struct vgpu_guest_info
 * @phase_started: the first submission of the phase was made
 * @error: sticky device error, cached so that it is kept when the device is gone
 * @error_index: item of @error
 * @submitted: items since open
 * @collected: completions since open
 * @resets: resets since binding; waiters check for a change
 */
struct vgpu_guest {
	struct kref ref;
	struct miscdevice misc;
	char name[16];
	int id;
	struct pci_dev *pdev;
	void __iomem *bar;
	struct vgpu_guest_area area;
	struct vgpu_windows *windows;
	wait_queue_head_t wait;
	atomic64_t interrupts;
	atomic64_t error_interrupts;

	struct mutex lock; /* the device and everything below */
	bool gone;
	bool opened;
	u32 entries;
	struct vgpu_desc *ring;
	dma_addr_t ring_bus;
	struct vgpu_completion *completions;
	dma_addr_t completions_bus;
	struct vgpu_shadow *shadow;
	dma_addr_t shadow_bus;
	u32 tail;
	u32 read;
	u32 min_outstanding;
	bool phase_started;
	u32 error;
	u32 error_index;
	u64 submitted;
	u64 collected;
	u64 resets;
};

void vgpu_guest_put(struct vgpu_guest *guest);

int vgpu_ring_alloc(struct vgpu_guest *guest, u32 entries);
void vgpu_ring_free(struct vgpu_guest *guest);
int vgpu_ring_start(struct vgpu_guest *guest);
int vgpu_ring_stop(struct vgpu_guest *guest);
int vgpu_ring_check(struct vgpu_guest *guest);
int vgpu_ring_lost(struct vgpu_guest *guest);
int vgpu_ring_ready(struct vgpu_guest *guest, u32 *ready);
int vgpu_ring_submit(struct vgpu_guest *guest, const struct vgpu_desc *descs,
		     u32 count, bool phase, u32 *outstanding);
int vgpu_ring_collect(struct vgpu_guest *guest, struct vgpu_completion *into,
		      u32 count);
int vgpu_ring_info(struct vgpu_guest *guest, struct vgpu_guest_info *info);

u64 vgpu_wakeups(struct vgpu_guest *guest);

void vgpu_area_init(struct vgpu_guest_area *area, struct device *dev);
void vgpu_area_free(struct vgpu_guest_area *area);
void vgpu_area_unbind(struct vgpu_guest_area *area);
int vgpu_area_mmap(struct vgpu_guest_area *area, struct vm_area_struct *vma);
int vgpu_area_translate(struct vgpu_guest_area *area, struct vgpu_desc *desc);

int vgpu_windows_start(struct vgpu_guest *guest);
void vgpu_windows_stop(struct vgpu_guest *guest);
bool vgpu_windows_busy(struct vgpu_guest *guest);
void vgpu_windows_end(struct vgpu_guest *guest, int error);
void vgpu_windows_interrupt(struct vgpu_windows *windows);
void vgpu_windows_wake(struct vgpu_windows *windows);
int vgpu_windows_states(struct vgpu_guest *guest, u32 *states);
int vgpu_window_take(struct vgpu_window *window);
void vgpu_window_give(struct vgpu_window *window);
int vgpu_window_check(struct vgpu_window *window, bool ask);

static inline enum vgpu_window_state vgpu_window_state(u32 states, u32 number)
{
	return states >> 2 * number & 3;
}

int vgpu_window_mmap(struct vgpu_window *window, struct vm_area_struct *vma);
long vgpu_window_ioctl(struct vgpu_window *window, unsigned int command, unsigned long arg);

struct inode *vgpu_space_create(void);
void vgpu_space_free(struct inode *space);

int vgpu_nodes_register(void);
void vgpu_nodes_unregister(void);
void vgpu_node_init(struct vgpu_windows *windows);
int vgpu_node_add(struct vgpu_guest *guest);
void vgpu_node_remove(struct vgpu_guest *guest);

extern const struct file_operations vgpu_file_ops;
extern const struct attribute_group *vgpu_node_groups[];

#endif /* _VGPU_GUEST_GUEST_H */
