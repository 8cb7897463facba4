// SPDX-License-Identifier: GPL-2.0
/*
 * Three slices that share an engine that lends, and their guests, which use windows only. The
 * state of each window changes only as uapi/vgpu_device.h says, and the completion vector
 * comes when there was no event before. The first slice has its own VMM (vmm.c), which
 * resets it in every possible way.
 */
#include "slices.h"

#include "bound.h"
#include "leases.h"

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"

#define REGION(index) ((u64)(index) << 40)
#define BAR0 REGION(VFIO_PCI_BAR0_REGION_INDEX)
#define CONFIG REGION(VFIO_PCI_CONFIG_REGION_INDEX)
#define VECTOR_FD 20	/* this one and those after it are used for nothing else */
#define MAPS 8

#define FREE BIT(VGPU_WINDOW_FREE)
#define OPEN BIT(VGPU_WINDOW_OPEN)
#define CLOSING BIT(VGPU_WINDOW_CLOSING)
#define LOST BIT(VGPU_WINDOW_LOST)

enum deed { NOTHING, OPENS, CLOSES, MAY_RESET };

struct slice {
	struct vgpu_device *device;
	struct mdev_device mdev;
	bool open;
	u8 seen[VGPU_WINDOWS_MAX];
	/* interrupts that must and that may have come since it was last checked */
	bool tracked;
	u64 signals, least, most;
};

struct slice_counts slice_counts;
u64 slices_moves[SLICES];

static struct slice slices[SLICES];
static struct vgpu_parent *parent;
static struct vm_area_struct *maps[MAPS];
static struct file vfio_file;	/* for the mappings of a VMM */

/* ---- accesses */

static ssize_t transfer(struct vgpu_device *device, u64 position, void *data, size_t bytes,
			bool write)
{
	loff_t at = position;
	ssize_t done;

	sim_user(data, bytes);
	if (write)
		done = device->vdev.ops->write(&device->vdev, data, bytes, &at);
	else
		done = device->vdev.ops->read(&device->vdev, data, bytes, &at);
	sim_user(NULL, 0);
	return done;
}

static u32 get(struct vgpu_device *device, u32 offset)
{
	u32 value;

	REQUIRE(transfer(device, BAR0 + offset, &value, sizeof(value), false) == sizeof(value));
	return value;
}

static void put(struct vgpu_device *device, u32 offset, u32 value)
{
	REQUIRE(transfer(device, BAR0 + offset, &value, sizeof(value), true) == sizeof(value));
}

/* Nothing that a guest does with its windows delays a thread that needs the engine. */
static u32 get_cheaply(struct vgpu_device *device, u32 offset)
{
	u64 locks = sim_counts.watched_locks;
	u32 value = get(device, offset);

	REQUIRE(sim_counts.watched_locks == locks);
	return value;
}

static void put_cheaply(struct vgpu_device *device, u32 offset, u32 value)
{
	u64 locks = sim_counts.watched_locks;

	put(device, offset, value);
	REQUIRE(sim_counts.watched_locks == locks);
}

/* ---- states */

static u32 after_host(u32 states)
{
	if (states & OPEN)
		states |= LOST;
	if (states & CLOSING)
		states |= FREE;
	return states;
}

static u32 after_guest(u32 states, enum deed deed)
{
	if (deed == OPENS && states & FREE)
		return (states & ~FREE) | OPEN;
	if (deed == CLOSES && states & (OPEN | LOST))
		return (states & ~(OPEN | LOST)) | CLOSING;
	if (deed == MAY_RESET && states & (OPEN | LOST))
		return states | CLOSING;
	return states;
}

static void note(struct slice *slice, u32 number, u8 now, enum deed deed)
{
	u32 may = after_host(after_guest(after_host(BIT(slice->seen[number])), deed));

	REQUIRE(may & BIT(now));
	if (now != slice->seen[number]) {
		slice_counts.lost_windows += now == VGPU_WINDOW_LOST;
		slice_counts.freed_windows += now == VGPU_WINDOW_FREE;
	}
	slice->seen[number] = now;
}

/* Nothing is left of a free window, and no free window has a child that cannot be used. */
static void check_window(const struct vgpu_window *window)
{
	const struct inode *memory = window->memory ? file_inode(window->memory) : NULL;

	if (window->state == VGPU_WINDOW_FREE)
		REQUIRE(!window->given);
	if (window->state == VGPU_WINDOW_FREE || window->state == VGPU_WINDOW_LOST)
		REQUIRE(!window->child);
	/* A window whose executor is gone is not left open. */
	if (window->state == VGPU_WINDOW_OPEN && window->given && bound_is_quiet())
		REQUIRE(window->child);
	for (int i = 0; memory && window->state == VGPU_WINDOW_FREE && i < KFUZZ_PARTS; i++)
		REQUIRE(!memory->written[i]);
}

/* @number: the window that the guest has just used, or all. */
static void look_at_states(struct slice *slice, u32 number, enum deed deed)
{
	struct vgpu_device *device = slice->device;

	for (u32 i = 0; i < VGPU_WINDOWS_MAX; i++) {
		bool done = number == i || number == VGPU_WINDOWS_MAX;

		note(slice, i, device->windows.window[i].state, done ? deed : NOTHING);
		check_window(&device->windows.window[i]);
	}
	if (slice->open && !device->revoked) {
		u32 states = get_cheaply(device, VGPU_REG_WINDOW_STATES);

		for (u32 i = 0; i < VGPU_WINDOWS_MAX; i++)
			note(slice, i, states >> 2 * i & 3, NOTHING);
	}
}

bool slices_is_free(const struct inode *memory)
{
	for (int i = 0; i < SLICES; i++) {
		struct vgpu_device *device = slices[i].device;

		for (u32 n = 0; device && n < VGPU_WINDOWS_MAX; n++) {
			const struct vgpu_window *window = &device->windows.window[n];

			if (window->memory && file_inode(window->memory) == memory)
				return window->state == VGPU_WINDOW_FREE;
		}
	}
	return false;
}

/* ---- the completion vector, of a slice that has no other reason for it */

static void check_vector(const struct slice *slice)
{
	u64 came = sim_signals(VECTOR_FD + (slice - slices)) - slice->signals;
	bool waits = slice->device->windows.events;

	if (!slice->tracked || slice->device->revoked)
		return;
	REQUIRE(came <= slice->most + waits);
	if (!bound_is_quiet())
		return;
	REQUIRE(came >= slice->least + waits);
	slice_counts.checked_vectors++;
}

static void take_events(struct slice *slice)
{
	bool some = get_cheaply(slice->device, VGPU_REG_WINDOW_EVENTS);

	slice->least += some;
	slice->most += some;
	slice_counts.raised += some;
}

static void connect(struct slice *slice)
{
	u32 words[offsetof(struct vfio_irq_set, data) / sizeof(u32) + 1];
	struct vfio_irq_set *set = (struct vfio_irq_set *)words;
	u16 command = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
	struct vgpu_device *device = slice->device;
	int number = slice - slices;

	*set = (struct vfio_irq_set){
		.argsz = sizeof(words), .count = 1, .index = VFIO_PCI_MSIX_IRQ_INDEX,
		.flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
	};
	words[ARRAY_SIZE(words) - 1] = VECTOR_FD + number;
	slice->tracked = false;
	REQUIRE(transfer(device, CONFIG + PCI_COMMAND, &command, sizeof(command), true) == 2);
	sim_user(words, sizeof(words));
	if (device->vdev.ops->ioctl(&device->vdev, VFIO_DEVICE_SET_IRQS, (unsigned long)words))
		return sim_user(NULL, 0);
	sim_user(NULL, 0);
	/* An event without an interrupt would keep all later events from raising one. */
	take_events(slice);
	slice->tracked = bound_is_quiet() && !device->windows.events;
	slice->signals = sim_signals(VECTOR_FD + number);
	slice->least = slice->most = 0;
}

/* Children learn that their knowledge is out of date. */
static void reset_by_register(struct vgpu_device *device)
{
	const struct vgpu_binding *binding = device->binding;
	u64 generation = binding ? vgpu_binding_lease(binding)->generation : 0;

	put(device, VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	if (binding && device->binding == binding)
		REQUIRE(vgpu_binding_lease(binding)->generation != generation);
}

static void reset(struct slice *slice)
{
	bool some = slice->device->windows.events;

	/* A thread that is faster than this one adds changes that this one does not see. */
	slice->least += some;
	slice->most++;
	if (sim_below(4)) {
		reset_by_register(slice->device);
		look_at_states(slice, VGPU_WINDOWS_MAX, CLOSES);
		return;
	}
	sim_user(&slice, 0);
	REQUIRE(!slice->device->vdev.ops->ioctl(&slice->device->vdev, VFIO_DEVICE_RESET, 0));
	sim_user(NULL, 0);
	look_at_states(slice, VGPU_WINDOWS_MAX, CLOSES);
	connect(slice);
}

/* ---- what a guest and its VMM do */

static void ring(struct slice *slice, u32 number)
{
	struct bound_bell bell;

	bound_before_bell(slice->device, number, &bell);
	put_cheaply(slice->device, VGPU_BAR0_WINDOW_BELL, number);
	bound_after_bell(&bell);
	slice_counts.bells++;
}

static void map(struct slice *slice, u32 number)
{
	u64 offset = (u64)number * VGPU_WINDOW_BYTES + sim_below(2) * PAGE_SIZE * sim_below(1024);
	u64 bytes = PAGE_SIZE * (1 + sim_below(sim_one_in(4) ? 2048 : 1024));
	unsigned long flags = sim_one_in(8) ? 0 : VM_SHARED | VM_MAYSHARE;
	u64 region = sim_one_in(8) ? sim_below(12) : VFIO_PCI_BAR2_REGION_INDEX;
	struct vm_area_struct **place = &maps[sim_below(MAPS)], *vma;
	struct vgpu_device *device = slice->device;
	bool fits = region == VFIO_PCI_BAR2_REGION_INDEX && flags && number < VGPU_WINDOWS_MAX &&
		    offset % VGPU_WINDOW_BYTES + bytes <= VGPU_WINDOW_BYTES;
	int ret;

	if (*place)
		sim_unmap(*place);
	*place = NULL;
	vma = sim_map_begin(&vfio_file, REGION(region) + offset, bytes, flags);
	sim_forget_told();
	ret = device->vdev.ops->mmap(&device->vdev, vma);
	REQUIRE(ret == (fits ? 0 : -EINVAL) || (ret == -ENOMEM && sim_has_failed && fits));
	if (ret) {
		REQUIRE(ret == -ENOMEM || sim_told("offset"));
		sim_unmap(vma);
		return;
	}
	REQUIRE(vma->vm_file == device->windows.window[number].memory);
	*place = vma;
	slice_counts.mapped++;
}

/* A process writes into its window through its mapping. */
static void write_memory(struct slice *slice, u32 number)
{
	struct vgpu_window *window = &slice->device->windows.window[number % VGPU_WINDOWS_MAX];
	const struct vm_area_struct *vma = maps[sim_below(MAPS)];

	if (!vma || vma->vm_file != window->memory || window->state != VGPU_WINDOW_OPEN)
		return;
	file_inode(vma->vm_file)->written[sim_below(KFUZZ_PARTS)] = true;
}

static void use(struct slice *slice)
{
	u32 number = sim_one_in(32) ? sim_random() : sim_below(sim_one_in(8) ? 18 : 4);
	bool is_free = number < VGPU_WINDOWS_MAX && slice->seen[number] == VGPU_WINDOW_FREE;

	switch (sim_below(16)) {
	case 0: case 1: case 2: case 3: case 4:
		put_cheaply(slice->device, VGPU_REG_WINDOW_OPEN, number);
		look_at_states(slice, number, number < VGPU_WINDOWS_MAX ? OPENS : NOTHING);
		slice_counts.opened_windows += is_free;
		break;
	case 5: case 6:
		put_cheaply(slice->device, VGPU_REG_WINDOW_CLOSE, number);
		look_at_states(slice, number, number < VGPU_WINDOWS_MAX ? CLOSES : NOTHING);
		slice_counts.closed_windows += !is_free;
		break;
	case 7: case 8: ring(slice, number); break;
	case 9: map(slice, number); break;
	case 10: case 11: write_memory(slice, number); break;
	case 12:
		if (slice != slices && sim_one_in(4))
			reset(slice);
		break;
	default: take_events(slice);
	}
}

/* ---- lives of the others */

static void create(struct slice *slice)
{
	slice->mdev = (struct mdev_device){ .type = &parent->classes[0].type };
	slices_put_name(slice - slices, &slice->mdev.uuid);
	if (vgpu_mdev_driver.probe(&slice->mdev)) {
		REQUIRE(sim_has_failed);
		return;
	}
	slice->device = dev_get_drvdata(&slice->mdev.dev);
	memset(slice->seen, VGPU_WINDOW_FREE, sizeof(slice->seen));
	slice->tracked = false;
}

static void open_slice(struct slice *slice)
{
	if (slice->device->vdev.ops->open_device(&slice->device->vdev)) {
		REQUIRE(sim_has_failed);
		return;
	}
	slice->open = true;
	look_at_states(slice, 0, NOTHING);
	connect(slice);
}

static void close_slice(struct slice *slice)
{
	slice->tracked = false;
	slice->device->vdev.ops->close_device(&slice->device->vdev);
	slice->open = false;
	look_at_states(slice, VGPU_WINDOWS_MAX, CLOSES);
}

static void remove_slice(struct slice *slice)
{
	struct vgpu_device *device = slice->device;

	/* Others may access it until it is known to be gone. */
	get_device(&device->vdev.device);
	vgpu_mdev_driver.remove(&slice->mdev);
	slice->device = NULL;
	put_device(&device->vdev.device);
}

bool slices_let_go(struct vfio_device *vdev)
{
	for (int i = 1; i < SLICES; i++) {
		if (!slices[i].device || &slices[i].device->vdev != vdev)
			continue;
		if (slices[i].open)
			close_slice(&slices[i]);
		return true;
	}
	return false;
}

static void give_tenant(struct slice *slice)
{
	static const char *const names[] = { "blue", "red", "green" };
	struct vgpu_slice_params params = { .weight = 1 + sim_below(9) };
	const struct vgpu_tenant *before;
	enum vgpu_sched_field fault;

	mutex_lock(&parent->lock);
	before = slice->device->tenant;
	vgpu_device_assign(slice->device, names[sim_below(ARRAY_SIZE(names))], &params, &fault);
	slices_moves[slice - slices] += before && slice->device->tenant != before;
	mutex_unlock(&parent->lock);
}

static void live(struct slice *slice)
{
	if (!slice->device)
		create(slice);
	else if (sim_one_in(60))
		remove_slice(slice);
	else if (!slice->open)
		sim_below(2) ? open_slice(slice) : give_tenant(slice);
	else if (sim_one_in(40))
		close_slice(slice);
	else
		use(slice);
}

void slices_step(void)
{
	struct slice *slice = &slices[sim_below(SLICES)];

	if (slice != slices) {
		live(slice);
	} else if (slice->device && slice->open && !slice->device->revoked) {
		look_at_states(slice, VGPU_WINDOWS_MAX, MAY_RESET);
		use(slice);
	}
	if (sim_one_in(4))
		sim_sleep(sim_below(sim_one_in(16) ? 3 * NSEC_PER_SEC : 3 * NSEC_PER_MSEC));
	slices_look();
}

/* No other slice has the engine while one does, whatever its pages say. */
static void check_leases(void)
{
	const struct vgpu_lease_page *said = NULL;
	unsigned int lent = 0;

	for (int i = 0; i < SLICES; i++) {
		struct vgpu_device *device = slices[i].device;

		if (!device || device->party.lease.state == VGPU_LEASE_NONE)
			continue;
		lent++;
		REQUIRE(vgpu_arbiter_holder(&parent->engine.arbiter) == &device->party);
		said = device->binding ? vgpu_binding_lease(device->binding) : NULL;
	}
	REQUIRE(lent <= 1);
	bound_check_leases(said);
	slice_counts.checked_leases += lent;
}

void slices_look(void)
{
	for (int i = 0; i < SLICES; i++) {
		if (!slices[i].device)
			continue;
		look_at_states(&slices[i], VGPU_WINDOWS_MAX, i ? NOTHING : MAY_RESET);
		check_vector(&slices[i]);
	}
	check_leases();
	leases_look(parent);
	bound_look();
}

/* ---- the first one, and all */

void slices_put_name(unsigned int slice, guid_t *uuid)
{
	memset(uuid, 0, sizeof(*uuid));
	if (slice)
		uuid->b[(UUID_STRING_LEN - slice) % 16] = 1;	/* as guid_parse() has it */
}

struct vgpu_device *slices_get(unsigned int slice) { return slices[slice].device; }

void slices_created(struct vgpu_device *device)
{
	slices[0].device = device;
	memset(slices[0].seen, VGPU_WINDOW_FREE, sizeof(slices[0].seen));
}

void slices_opened(void) { slices[0].open = true; }
void slices_closed(void) { slices[0].open = false; }
void slices_removed(void) { slices[0] = (struct slice){}; }

void slices_begin(struct vgpu_parent *is)
{
	parent = is;
	memset(slices, 0, sizeof(slices));
	memset(slices_moves, 0, sizeof(slices_moves));
	vfio_file = (struct file){ .refs = 1 };
	sim_watched_lock = &parent->engine.lock;
}

void slices_end(void)
{
	for (int i = 1; i < SLICES; i++)
		if (slices[i].device)
			remove_slice(&slices[i]);
	for (int i = 0; i < MAPS; i++) {
		if (maps[i])
			sim_unmap(maps[i]);
		maps[i] = NULL;
	}
	sim_watched_lock = NULL;
	REQUIRE(vfio_file.refs == 1);
}
