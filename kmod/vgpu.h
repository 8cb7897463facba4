/* SPDX-License-Identifier: GPL-2.0 */
/*
 * vgpumgr kernel module: the objects and their ownership.
 *
 * parent   one accelerator (a PCI function bound to this driver, or adopted while bound
 *          to its vendor's driver), its mdev types and its engine. Its storage stays
 *          until the module is unloaded.
 * engine   executes items on one parent: a kernel thread, a scheduler, a lock.
 * tenant   the scheduler group of one tenant on one parent, and its name.
 * device   one slice: the mdev that a VM opens.
 * ring     one enabling of a device's submission ring, until reset or close. The device
 *          owns the ring and its items keep it alive, so closing a device never waits
 *          for the engine.
 * item     one fetched descriptor with everything needed to execute it.
 *
 * Locks, outermost first:
 *   the function's device lock   binding, unbinding and adopting it
 *   executor->lock       binding a process
 *   vgpu_parents_lock    the list of parents; a holder never waits for parent->lock
 *   parent->lock         tenants, devices, memberships, memory, open devices
 *   device->state_lock   registers, configuration space, the ring
 *   engine->lock         (spin, irq) scheduler, rings' item lists, dead flags, leases
 *   windows->lock        (spin, irq) the windows of a device
 *   device->irq_lock     (spin, irq) eventfd contexts
 */
#ifndef VGPU_H
#define VGPU_H

#include <linux/completion.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/llist.h>
#include <linux/mdev.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/ratelimit_types.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/uuid.h>
#include <linux/vfio.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "control/events.h"
#include "engine/processor.h"
#include "function/ring_setup.h"
#include "engine/window.h"
#include "sched/vgpu_arbiter.h"
#include "sched/vgpu_sched.h"
#include "uapi/vgpu_device.h"

#define VGPU_ITEM_BYTES_MAX	(1U << 20)
#define VGPU_DELAY_NS_MAX	(1000U * NSEC_PER_MSEC)
#define VGPU_INFLIGHT_ITEMS	512	/* items fetched and not yet answered, per slice */
#define VGPU_INFLIGHT_BYTES	(8U << 20)
#define VGPU_CONFIG_BYTES	256

struct vgpu_binding;
struct vgpu_device;
struct vgpu_engine;
struct vgpu_item;
struct vgpu_migration_file;
struct vgpu_parent;
struct vgpu_ring;

/**
 * struct vgpu_calibration - measured costs of an engine
 * @switch_cost_ns: cost of changing from one slice to another
 * @fact_ps: time of one multiplication of VGPU_OP_FACT, ps
 * @max_chunk_ns: initial value of the scheduler's parameter; 0 to keep its present value
 */
struct vgpu_calibration {
	u64 switch_cost_ns;
	u32 fact_ps;
	u64 max_chunk_ns;
};

/**
 * struct vgpu_engine_ops - implementation of an engine
 * @name: name, as reported by the ``engine`` attribute
 * @operations: bit n: the engine executes operation n of enum vgpu_op
 * @whole_items: the engine can neither split an item nor stop it, so an item longer than
 *	max_chunk is refused
 * @lends: the engine executes nothing itself: processes use the accelerator in turns, one
 *	executor with its children for each slice (engine/lending.c). Such an engine has no
 *	@execute and no @estimate_ns
 * @drives: returns whether the engine can drive a PCI function
 * @start: take the function and measure the engine; returns its state, or an ERR_PTR with
 *	nothing left behind. May take seconds.
 * @stop: the reverse; nothing is executing
 * @lasts_ns: how long @execute will take for @item and @limit_ns if that is known beforehand,
 *	else U64_MAX. At most that time and twice VGPU_ENGINE_NOTICE_NS are charged: once for a
 *	late beginning and once for a late end. Optional; engine->lock held
 * @execute: continue @item for @limit_ns if @lasts_ns returned that, else for at most @limit_ns
 *	of engine time, or until its end if it cannot be split. Returns true once the item is
 *	finished. Engine thread only; may sleep, never touches guest memory. Ends in bounded
 *	time; if the hardware does not end, by vgpu_engine_wedge().
 * @estimate_ns: predicted engine time of a whole item
 */
struct vgpu_engine_ops {
	const char *name;
	u32 operations;
	bool whole_items;
	bool lends;
	bool (*drives)(struct pci_dev *pdev);
	void *(*start)(struct vgpu_engine *engine, struct pci_dev *pdev,
		       struct vgpu_calibration *calibration);
	void (*stop)(void *state);
	u64 (*lasts_ns)(const struct vgpu_engine *engine, const struct vgpu_item *item,
			u64 limit_ns);
	bool (*execute)(struct vgpu_engine *engine, struct vgpu_item *item,
			u64 limit_ns);
	u64 (*estimate_ns)(struct vgpu_engine *engine,
			   const struct vgpu_item *item);
};

/**
 * struct vgpu_engine - one accelerator's execution and its scheduler
 * @ops: the implementation; changes only while there is no slice
 * @state: private data of the implementation
 * @fact_ps: see struct vgpu_calibration
 * @lock: protects all of @sched to @held_ns, @wedged and every ring's item lists
 * @sched: the scheduler
 * @thread: executes items; the only caller of @ops->execute
 * @name: name of the accelerator, for traces
 * @rings: rings that are alive
 * @executing: the item @ops->execute works on
 * @leaving: slice of @executing, to be removed from the scheduler once @executing is charged
 * @began_ns: when the decision to run @executing was made; the item is charged from then on;
 *	written by @thread under @lock, read by @thread
 * @stops_ns: when @executing will stop or has stopped, U64_MAX if not known
 * @parked: @thread waits for work and must be woken
 * @holder: the slice that pays for the idle engine, for traces; NULL for none
 * @held_since_ns: since when @holder pays
 * @held_ns: hold time of the holder's group before @held_since_ns
 * @pace: sets the priority of @thread
 * @slept_ns: how long @thread has slept since @began_ns
 * @busy_ns: how long @thread was awake at brief items, less four times the time it slept
 * @events: events that are not sent yet; @lock
 * @wedged: the hardware does not answer: nothing is executed until the engine is started again
 * @arbiter: decides which slice has the lease, if the engine lends; @lock
 * @lease_timer: calls the arbiter when it has to look again
 */
struct vgpu_engine {
	const struct vgpu_engine_ops *ops;
	void *state;
	u32 fact_ps;
	spinlock_t lock;	/* scheduler and item lists */
	struct vgpu_sched sched;
	struct task_struct *thread;
	const char *name;
	struct list_head rings;
	struct vgpu_item *executing;
	struct vgpu_device *leaving;
	u64 began_ns;
	u64 stops_ns;
	bool parked;
	struct vgpu_slice *holder;
	u64 held_since_ns;
	u64 held_ns;
	enum vgpu_engine_pace pace;
	u64 slept_ns;
	u64 busy_ns;
	struct vgpu_events events;
	bool wedged;
	struct vgpu_arbiter arbiter;
	struct hrtimer lease_timer;
};

/**
 * struct vgpu_memory_class - one mdev type: a size of device memory
 * @type: the mdev core's type
 * @bytes: device memory of each slice of this type
 */
struct vgpu_memory_class {
	struct mdev_type type;
	u64 bytes;
};

#define VGPU_MEMORY_CLASSES	4
#define VGPU_DRIVER_NAME_BYTES	32

/**
 * struct vgpu_parent - one accelerator
 * @refs: references: one for the driver binding or adoption, one for each device until its
 *	release
 * @node: node in vgpu_parents
 * @gone: node in the list of parents to free when the module is unloaded
 * @pdev: the PCI function; valid while @mdev is registered
 * @name: PCI address; the name of a parent on every control surface
 * @driver: name of the driver that the function was bound to when it was added
 * @adopted: the function is bound to another driver than this one
 * @leave: work that unregisters the parent after its adoption has ended
 * @left: @leave is done
 * @mdev: registration with the mdev core
 * @lock: protects everything below up to @engine
 * @tenants: struct vgpu_tenant
 * @devices: struct vgpu_device, from creation to removal
 * @memory_total: device memory of this accelerator, bytes
 * @memory_reserved: device memory of all created devices, bytes
 * @attach_permit: opening a device consumes a permit
 * @generation: generation of the engine's sharing parameters, vgpu_generation_next()
 * @removed: the driver is being unbound, or the adoption has ended; nothing new may be added
 * @engine: engine of the accelerator
 * @classes: memory classes, indexed like @types
 * @types: pointers passed to the mdev core
 * @nr_types: how many of @types are registered
 */
struct vgpu_parent {
	struct kref refs;
	struct list_head node;
	struct llist_node gone;
	struct pci_dev *pdev;
	char name[16];
	char driver[VGPU_DRIVER_NAME_BYTES];
	bool adopted;
	struct work_struct leave;
	struct completion left;
	struct mdev_parent mdev;
	struct mutex lock;	/* tenants, devices, memory */
	struct list_head tenants;
	struct list_head devices;
	u64 memory_total;
	u64 memory_reserved;
	bool attach_permit;
	u64 generation;
	bool removed;
	struct vgpu_engine engine;
	struct vgpu_memory_class classes[VGPU_MEMORY_CLASSES];
	struct mdev_type *types[VGPU_MEMORY_CLASSES];
	unsigned int nr_types;
};

/**
 * struct vgpu_tenant - a tenant's group on one parent
 * @node: node in parent->tenants, which is ordered by @id
 * @id: vgpu_id_next(): resumes dumps, and distinguishes tenants that had the same name at
 *	different times
 * @parent: the tenant's accelerator; a tenant never outlives its parent
 * @name: the tenant
 * @configured: @group is in the engine's scheduler; until then its devices are inert
 * @generation: generation of @params, vgpu_generation_next(); 0 while not configured
 * @params: parameters of the group, as set
 * @devices: how many devices name this tenant
 * @group: the tenant's group in the scheduler, engine->lock
 * @events: events about it that are not queued yet, engine->lock
 *
 * Created by the first configuration or by the first device that names it; freed when it is not
 * configured and no device names it. parent->lock.
 */
struct vgpu_tenant {
	struct list_head node;
	u64 id;
	struct vgpu_parent *parent;
	char name[VGPU_TENANT_NAME_BYTES];
	bool configured;
	u64 generation;
	struct vgpu_group_params params;
	unsigned int devices;
	struct vgpu_group group;
	struct vgpu_event_source events;
};

/**
 * struct vgpu_memory - device memory of one open device
 * @refs: references: one for the device while open, one for each ring
 * @bytes: size
 * @data: the memory, zeroed when allocated and before it is freed
 */
struct vgpu_memory {
	struct kref refs;
	u64 bytes;
	void *data;
};

/**
 * struct vgpu_operand - one operand of an item
 * @data: its memory for the engine: staging or device memory
 * @guest: guest address that a staged operand is copied from or to
 * @bytes: size; 0 when the operation has no such operand
 * @staged: @data is a staging buffer owned by the item
 */
struct vgpu_operand {
	void *data;
	u64 guest;
	u32 bytes;
	bool staged;
};

/**
 * struct vgpu_item - one fetched descriptor
 * @node: node in ring->ready, then in ring->done
 * @late: node in the list of items to drop
 * @ring: the item's ring; the item holds a reference to it
 * @desc: the only copy of the descriptor that is ever used
 * @number: position in the ring, free running
 * @dst: destination
 * @src: sources
 * @done: progress within the operation, in the engine's own units
 * @result: result for the completion
 * @run_ns: engine time charged so far
 * @staging_bytes: host memory of the item's staged operands
 */
struct vgpu_item {
	struct list_head node;
	struct llist_node late;
	struct vgpu_ring *ring;
	struct vgpu_desc desc;
	u32 number;
	struct vgpu_operand dst;
	struct vgpu_operand src[2];
	u64 done;
	u64 result;
	u64 run_ns;
	u32 staging_bytes;
};

/**
 * struct vgpu_ring - one enabling of a device's rings
 * @refs: references: one for the device, one for each item
 * @node: node in engine->rings from enabling until @dead; engine->lock
 * @device: the ring's device; valid while not @dead
 * @memory: device memory; the ring holds a reference to it
 * @base: guest address of the submission ring
 * @completion: guest address of the completion ring
 * @shadow: guest address of struct vgpu_shadow, 0 for none
 * @entries: number of entries of each ring
 * @tail: tail as last written to the doorbell
 * @fetched: items fetched; worker only, read by registers
 * @completed: items answered; worker only, read by registers
 * @inflight: fetched and not yet answered; worker only
 * @inflight_bytes: staging memory of the items in flight; worker only
 * @ready: items to execute, the first may be executing; engine->lock
 * @done: items to answer; engine->lock
 * @dma_bytes: bytes transferred and not yet counted; worker only
 * @dead: reset or closed: late items are dropped; engine->lock
 * @paused: nothing new begins, nothing is fetched; engine->lock
 * @quiet: paused, with nothing left to wait for
 * @memcg: cgroup charged for staged operands, may be NULL
 * @released: the worker must stop serving the ring; set before the worker is killed
 * @left: the worker has stopped serving the ring
 * @reported: the guest was notified of the error; worker only
 * @pending: the worker may have something to do
 * @worker: the slice's worker: answers, fetches and stages items
 * @watchdog: interrupts an access to guest memory that does not answer
 * @batch: descriptors being fetched; worker only
 */
struct vgpu_ring {
	struct kref refs;
	struct list_head node;
	struct vgpu_device *device;
	struct vgpu_memory *memory;
	u64 base;
	u64 completion;
	u64 shadow;
	u32 entries;
	u32 tail;
	u32 fetched;
	u32 completed;
	u32 inflight;
	u32 inflight_bytes;
	u64 dma_bytes;
	struct list_head ready;
	struct list_head done;
	bool dead;
	bool paused;
	struct completion quiet;
	struct mem_cgroup *memcg;
	bool released;
	struct completion left;
	bool reported;
	bool pending;
	struct task_struct *worker;
	struct timer_list watchdog;
	struct vgpu_desc batch[];
};

/**
 * struct vgpu_device_stats - counters of one slice outside the scheduler
 * @items: items answered
 * @dma_bytes: bytes read from and written to guest memory
 * @doorbells: doorbell writes; written under the device's state_lock only
 * @errors: times the device entered its error state
 * @resets: resets by the guest or the VMM
 * @dropped: items dropped by reset, close or removal
 */
struct vgpu_device_stats {
	u64 items;
	u64 dma_bytes;
	u64 doorbells;
	u64 errors;
	u64 resets;
	u64 dropped;
};

/**
 * struct vgpu_device - one slice
 * @vdev: the VFIO device; its lifetime is that of this struct
 * @parent: the slice's accelerator; the slice holds a reference until its release
 * @node: node in parent->devices, parent->lock
 * @uuid: name of the slice
 * @memory_bytes: device memory, as its class has it
 * @tenant: the slice's tenant, NULL until assigned; parent->lock
 * @params: weight and cap inside the tenant's group, parent->lock
 * @permit_until: jiffies until which a permit is valid; 0 for none; parent->lock
 * @open: the device is open: between open_device and close_device; parent->lock
 * @opener_pid: thread group of the process that opened it; parent->lock
 * @opener_comm: name of that process; parent->lock
 * @log: rate limit of its lines in the log
 * @slice: the device's slice in the scheduler, engine->lock
 * @scheduled: @slice is in the scheduler: it has a configured tenant and is not revoked;
 *	engine->lock, set with parent->lock held too
 * @binding: the slice's executor if the engine lends; changes under engine->lock and
 *	windows.lock
 * @party: the slice's party in the arbiter; engine->lock
 * @children: the children of @binding; engine->lock
 * @requests_paid_ns: time up to which its children's requests are paid, see vgpu_request_take()
 * @windows: BAR2, if the engine lends
 * @worker: accesses guest memory, while open
 * @served: the ring that the worker serves or is to serve; set under @state_lock, cleared by
 *	the worker
 * @dma_lock: held during each access to guest memory, by @worker
 * @state_lock: protects everything below
 * @memory: device memory while open
 * @ring: the ring while the device is enabled; written under @state_lock and engine->lock
 * @config: PCI configuration space
 * @msix_table: MSI-X table as stored by the VMM; not used here, because VFIO connects the
 *	vectors
 * @setup: ring registers, used when enabled
 * @run_ns_hi: latched by reading VGPU_REG_RUN_NS_LO
 * @run_ns_before: engine time of a restored slice on other hosts
 * @run_ns_settled: engine time on this host when it was last read
 * @parked_ns_settled: the scheduler's parked time when @run_ns_settled was read
 * @migration_state: the ring is paused in every state except running
 * @migration: the save or restore in progress; holds a reference to its file
 * @revoked: being removed: the function behaves as if it was pulled out; written under
 *	engine->lock
 * @error: enum vgpu_error; engine->lock
 * @error_index: number of the item at fault; engine->lock
 * @storm_tokens: for actions that bring no work, see vgpu_storm_take(); engine->lock
 * @storm_refill_ns: when @storm_tokens was last refilled; engine->lock
 * @ration: how much longer @worker may have real-time priority; @worker only
 * @stats: engine->lock, except as struct vgpu_device_stats says
 * @events: events about it that are not queued yet, engine->lock
 * @irq_lock: protects @vectors and @request
 * @vectors: MSI-X eventfds
 * @request: eventfd that asks the VMM to close the slice
 */
struct vgpu_device {
	struct vfio_device vdev;
	struct vgpu_parent *parent;
	struct list_head node;
	guid_t uuid;
	u64 memory_bytes;
	struct vgpu_tenant *tenant;
	struct vgpu_slice_params params;
	unsigned long permit_until;
	bool open;
	pid_t opener_pid;
	char opener_comm[TASK_COMM_LEN];
	struct ratelimit_state log;
	struct vgpu_slice slice;
	bool scheduled;
	struct vgpu_binding *binding;
	struct vgpu_party party;
	struct list_head children;
	atomic64_t requests_paid_ns;
	struct vgpu_windows windows;
	struct task_struct *worker;
	struct vgpu_ring *served;
	struct mutex dma_lock;		/* one access to guest memory */
	struct mutex state_lock;	/* registers, the ring */
	bool revoked;
	struct vgpu_memory *memory;
	struct vgpu_ring *ring;
	u8 config[VGPU_CONFIG_BYTES];
	u8 msix_table[PCI_MSIX_ENTRY_SIZE * VGPU_VECTORS];
	struct vgpu_ring_setup setup;
	u32 run_ns_hi;
	u64 run_ns_before;
	u64 run_ns_settled;
	u64 parked_ns_settled;
	enum vfio_device_mig_state migration_state;
	struct vgpu_migration_file *migration;
	u32 error;
	u32 error_index;
	u32 storm_tokens;
	u64 storm_refill_ns;
	struct vgpu_ration ration;
	struct vgpu_device_stats stats;
	struct vgpu_event_source events;
	spinlock_t irq_lock;	/* eventfds */
	struct eventfd_ctx *vectors[VGPU_VECTORS];
	struct eventfd_ctx *request;
};

/* control/parents.c */
extern struct mutex vgpu_parents_lock;
extern struct list_head vgpu_parents;
struct vgpu_parent *vgpu_parent_find(const char *name);	/* vgpu_parents_lock held */
struct vgpu_parent *vgpu_parent_of(const struct device *dev);
struct vgpu_parent *vgpu_parent_next(const char *name, bool inclusive);
void vgpu_parent_put(struct vgpu_parent *parent);
void vgpu_parents_free(void);
struct vgpu_device *vgpu_device_lock(const guid_t *uuid);

/* control/parent.c */
struct vgpu_parent *vgpu_parent_create(struct pci_dev *pdev, const struct vgpu_engine_ops *ops);
int vgpu_parent_register(struct vgpu_parent *parent);
void vgpu_parent_revoke(struct vgpu_parent *parent);	/* parent->lock held */
void vgpu_parent_unregister(struct vgpu_parent *parent);
void vgpu_parent_destroy(struct vgpu_parent *parent);
int vgpu_parent_driver_register(void);
void vgpu_parent_driver_unregister(void);
int vgpu_attr_refused(struct device *dev, const char *attribute, int ret);
int vgpu_attr_refused_for(struct device *dev, const char *attribute, const char *field, int ret);

/* Releases @parent's lock and reference, which a search for an object has taken. */
static inline void vgpu_parent_unlock(struct vgpu_parent *parent)
{
	mutex_unlock(&parent->lock);
	vgpu_parent_put(parent);
}

/* control/numbers.c */
void vgpu_numbers_init(void);
u64 vgpu_id_next(void);
u64 vgpu_generation_next(void);

/* control/tenant.c: groups and memberships; callers hold parent->lock */
struct vgpu_tenant *vgpu_tenant_find(struct vgpu_parent *parent, const char *name);
int vgpu_tenant_configure(struct vgpu_parent *parent, const char *name,
			  const struct vgpu_group_params *params,
			  enum vgpu_sched_field *fault);
int vgpu_tenant_unconfigure(struct vgpu_tenant *tenant);
int vgpu_device_assign(struct vgpu_device *device, const char *tenant,
		       const struct vgpu_slice_params *params,
		       enum vgpu_sched_field *fault);
int vgpu_device_set_params(struct vgpu_device *device,
			   const struct vgpu_slice_params *params,
			   enum vgpu_sched_field *fault);
void vgpu_device_unassign(struct vgpu_device *device);
void vgpu_tenants_free(struct vgpu_parent *parent);

/* control/device_attrs.c */
extern const struct attribute_group *vgpu_device_groups[];

/* control/netlink.c */
int vgpu_netlink_register(void);
void vgpu_netlink_unregister(void);
void vgpu_netlink_changed(void);	/* a GPU, tenant or slice was added or removed */

/* function/device.c: life of a slice */
int vgpu_device_driver_register(void);
void vgpu_device_driver_unregister(void);
extern struct mdev_driver vgpu_mdev_driver;
void vgpu_device_disable(struct vgpu_device *device);	/* state_lock held */
void vgpu_device_reset(struct vgpu_device *device);	/* state_lock held */
void vgpu_device_revoke(struct vgpu_device *device);	/* parent->lock held */
/* Also called by kunit/. */
bool vgpu_device_take(struct vgpu_device *device);
int vgpu_device_publish(struct vgpu_device *device);
void vgpu_device_withdraw(struct vgpu_device *device);

static inline bool vgpu_device_masters_bus(const struct vgpu_device *device)
{
	return READ_ONCE(device->config[PCI_COMMAND]) & PCI_COMMAND_MASTER;
}

static inline struct vgpu_device *vgpu_vdev_to_device(struct vfio_device *vdev)
{
	return container_of(vdev, struct vgpu_device, vdev);
}

/* control/fault.c */
void vgpu_log_init(struct ratelimit_state *log);
bool vgpu_log_takes(struct vgpu_device *device);
long vgpu_refused(struct vgpu_device *device, const char *what, const char *field, long ret);
void vgpu_restoring_refused(struct vgpu_device *device, const char *fault);
bool vgpu_device_note_error(struct vgpu_device *device, u32 error, u32 index);
void vgpu_device_fault_of(struct vgpu_device *device, struct vgpu_ring *ring,
			  u32 error, u32 index, const char *field);
void vgpu_device_fault(struct vgpu_device *device, struct vgpu_ring *ring,
		       u32 error, u32 index);

/* function/access.c: regions and ioctls of a device that is open */
ssize_t vgpu_access_read(struct vfio_device *vdev, char __user *buffer, size_t count,
			 loff_t *position);
ssize_t vgpu_access_write(struct vfio_device *vdev, const char __user *buffer, size_t count,
			  loff_t *position);
long vgpu_access_ioctl(struct vfio_device *vdev, unsigned int command, unsigned long arg);
int vgpu_access_mmap(struct vfio_device *vdev, struct vm_area_struct *vma);
#ifdef VGPU_HAVE_VFIO_REGION_INFO_CAPS
int vgpu_access_region_info(struct vfio_device *vdev, struct vfio_region_info *info,
			    struct vfio_info_cap *caps);
#endif

/* function/registers.c: BAR0, state_lock held */
void vgpu_registers_reset(struct vgpu_device *device);
void vgpu_msix_describe(u8 *table, u8 *writable);
u64 vgpu_device_run_ns(struct vgpu_device *device);
void vgpu_bar0_read(struct vgpu_device *device, u32 offset, void *data, u32 bytes);
void vgpu_bar0_write(struct vgpu_device *device, u32 offset, const void *data, u32 bytes);

/* function/config_space.c: PCI configuration space, state_lock held */
void vgpu_config_reset(struct vgpu_device *device);
void vgpu_config_describe(u8 *config, u8 *writable);
void vgpu_config_read(const struct vgpu_device *device, u32 offset, u8 *data, u32 bytes);
void vgpu_config_write(struct vgpu_device *device, u32 offset, const u8 *data, u32 bytes);

/* function/permit.c: the one-shot permission to open a slice; parent->lock held */
bool vgpu_device_permitted(const struct vgpu_device *device);
unsigned int vgpu_permit_left_s(const struct vgpu_device *device);
void vgpu_permit_grant(struct vgpu_device *device);
void vgpu_permit_withdraw(struct vgpu_device *device);
bool vgpu_permit_use(struct vgpu_device *device);

/* function/irq.c: eventfds of a device */
int vgpu_irqs_set(struct vgpu_device *device, const struct vfio_irq_set *set, void *data);
void vgpu_irqs_release(struct vgpu_device *device);
void vgpu_device_raise(struct vgpu_device *device, unsigned int vector);
void vgpu_device_request(struct vgpu_device *device);

#endif /* VGPU_H */
