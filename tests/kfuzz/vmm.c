// SPDX-License-Identifier: GPL-2.0
#include "vmm.h"

#include "engine/engine.h"
#include "engine/ring.h"

#define REGION(index) ((u64)(index) << 40)
#define BAR0 REGION(VFIO_PCI_BAR0_REGION_INDEX)
#define CONFIG REGION(VFIO_PCI_CONFIG_REGION_INDEX)
#define CONFIG_BYTES 256u
#define EXPRESS_DEVCTL 0x58u
#define ACCESS_MAX 80u
#define BAR2_BYTES (16u * (4u << 20))

struct vmm_counts vmm_counts;

static struct vgpu_device *device;
static struct vgpu_ring *known;
static struct rings rings;
static u8 first_config[CONFIG_BYTES];
static u32 known_error;
static u64 known_run_ns;

/* ---- accesses, each with a buffer of exactly its size */

static ssize_t transfer(u64 position, void *data, size_t bytes, bool write)
{
	u8 *user = malloc(bytes ?: 1);
	loff_t at = position;
	ssize_t done;

	REQUIRE(user);
	memcpy(user, data, bytes);
	sim_user(user, bytes);
	if (write)
		done = device->vdev.ops->write(&device->vdev, (char *)user, bytes, &at);
	else
		done = device->vdev.ops->read(&device->vdev, (char *)user, bytes, &at);
	sim_user(NULL, 0);
	REQUIRE(done < 0 ? at == (loff_t)position : at == (loff_t)position + done);
	memcpy(data, user, bytes);
	free(user);
	return done;
}

static u32 get(u32 offset)
{
	u32 value;

	REQUIRE(transfer(BAR0 + offset, &value, sizeof(value), false) == sizeof(value));
	return value;
}

static void put(u32 offset, u32 value)
{
	REQUIRE(transfer(BAR0 + offset, &value, sizeof(value), true) == sizeof(value));
}

static void put_address(u32 offset, u64 address)
{
	REQUIRE(transfer(BAR0 + offset, &address, sizeof(address), true) == sizeof(address));
}

static u64 get_address(u32 offset) { return (u64)get(offset + 4) << 32 | get(offset); }

static void put_config(u32 offset, u32 value, size_t bytes)
{
	REQUIRE(transfer(CONFIG + offset, &value, bytes, true) == (ssize_t)bytes);
}

/* ---- what must hold */

static bool lends(void) { return device->parent->engine.ops->lends; }

/* The operations that this engine has. */
static u32 operations(void) { return lends() ? 0 : 0x7f; }

static u32 features(void) { return lends() ? VGPU_FEATURE_WINDOWS : 0; }

/* Bits that PCI makes writable in the capabilities of this function; FLR reads as zero. */
static u8 writable(u32 offset)
{
	switch (offset) {
	case PCI_COMMAND: return PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_PARITY;
	case PCI_COMMAND + 1: return (PCI_COMMAND_INTX_DISABLE | PCI_COMMAND_SERR) >> 8;
	case PCI_CACHE_LINE_SIZE: case PCI_INTERRUPT_LINE: return 0xff;
	case PCI_BASE_ADDRESS_0 + 1: return 0xc0;
	case PCI_BASE_ADDRESS_0 + 2: case PCI_BASE_ADDRESS_0 + 3: return 0xff;
	case PCI_BASE_ADDRESS_2 + 3: return lends() ? 0xfc : 0;
	case PCI_BASE_ADDRESS_2 + 4 ... PCI_BASE_ADDRESS_2 + 7: return lends() ? 0xff : 0;
	case 0x40 + PCI_MSIX_FLAGS + 1: return 0xc0;
	case EXPRESS_DEVCTL: return 0xff;
	case EXPRESS_DEVCTL + 1: return 0x78;
	default: return 0;
	}
}

static void look_at_config(void)
{
	u8 now[CONFIG_BYTES];

	REQUIRE(transfer(CONFIG, now, sizeof(now), false) == sizeof(now));
	for (u32 i = 0; i < CONFIG_BYTES; i++)
		REQUIRE(!((now[i] ^ first_config[i]) & ~writable(i)));
}

static bool fits(u64 at, u64 bytes, u64 align)
{
	return !(at % align) && at + bytes > at;
}

static void look_at_rings(void)
{
	struct rings now = { .submission = get_address(VGPU_REG_RING_LO),
			     .completion = get_address(VGPU_REG_COMPLETION_LO),
			     .shadow = get_address(VGPU_REG_SHADOW_LO),
			     .entries = get(VGPU_REG_RING_ENTRIES) };

	if (!device->ring) {
		guest_disabled();
	} else if (device->ring != known) {
		REQUIRE(now.entries >= 8 && now.entries <= 4096 && !(now.entries & (now.entries - 1)));
		REQUIRE(fits(now.submission, now.entries * 64ull, 64));
		REQUIRE(fits(now.completion, now.entries * 32ull, 32));
		REQUIRE(fits(now.shadow, 64, 64));
		REQUIRE(now.submission == device->ring->base && now.shadow == device->ring->shadow &&
			now.completion == device->ring->completion &&
			now.entries == device->ring->entries);
		guest_enabled(device->ring);
		vmm_counts.enables++;
		rings = now;
	} else {
		REQUIRE(now.submission == rings.submission && now.shadow == rings.shadow &&
			now.completion == rings.completion && now.entries == rings.entries);
	}
	known = device->ring;
}


static void look_at_error(u32 error)
{
	u32 number = get(VGPU_REG_ERROR_INDEX);

	REQUIRE(error < ARRAY_SIZE(vmm_counts.faults));
	if (error == known_error)
		return;
	known_error = error;
	vmm_counts.faults[error]++;
	/* An engine that lends has no operations. */
	if (error >= VGPU_ERROR_OP && error <= VGPU_ERROR_CHUNK && !lends())
		REQUIRE(guest_deserves(number, error));
}

/*
 * The guest's clock stands still or goes on; it is never set back. Reading it again while it
 * stands still costs others nothing.
 */
static void look_at_run_ns(u64 least_ns)
{
	u64 run_ns, spinlocks;

	REQUIRE(transfer(BAR0 + VGPU_REG_RUN_NS_LO, &known_run_ns, sizeof(u64), false) == sizeof(u64));
	REQUIRE(known_run_ns >= least_ns);
	spinlocks = sim_counts.spinlocks;
	REQUIRE(transfer(BAR0 + VGPU_REG_RUN_NS_LO, &run_ns, sizeof(run_ns), false) == sizeof(run_ns));
	REQUIRE(run_ns > known_run_ns ||
		(run_ns == known_run_ns && sim_counts.spinlocks == spinlocks));
	known_run_ns = run_ns;
}

void vmm_restored(u64 run_ns)
{
	look_at_run_ns(run_ns);
	known_error = get(VGPU_REG_ERROR);	/* it came with the stream */
}

void vmm_discarded(void)
{
	const u8 *memory = device->memory->data;
	u8 config[CONFIG_BYTES];

	REQUIRE(!device->ring && !get(VGPU_REG_ERROR) && !get(VGPU_REG_ERROR_INDEX) &&
		!get_address(VGPU_REG_RING_LO) && !get(VGPU_REG_RING_ENTRIES));
	REQUIRE(transfer(CONFIG, config, CONFIG_BYTES, false) == CONFIG_BYTES);
	REQUIRE(!memcmp(config, first_config, CONFIG_BYTES));
	REQUIRE(!*memory && !memcmp(memory, memory + 1, device->memory_bytes - 1));
	known_error = 0;
}

void vmm_look(void)
{
	u32 status, error, fetched, completed;

	look_at_rings();
	completed = get(VGPU_REG_COMPLETED);
	fetched = get(VGPU_REG_FETCHED);
	REQUIRE(get(VGPU_REG_ID) == VGPU_ID && get(VGPU_REG_ABI) == VGPU_ABI);
	REQUIRE(get(VGPU_REG_FLAGS) == VGPU_DESC_FLAGS && get(VGPU_REG_OPS) == operations() &&
		get(VGPU_REG_FEATURES) == features() &&
		get(VGPU_REG_WINDOWS) == (lends() ? 16 : 0) &&
		get(VGPU_REG_WINDOW_BYTES) == (lends() ? 4u << 20 : 0));
	REQUIRE(get(VGPU_REG_MEMORY_LO) == device->memory_bytes);
	status = get(VGPU_REG_STATUS);
	error = get(VGPU_REG_ERROR);
	REQUIRE(!(status & ~7u));
	REQUIRE(!!(status & VGPU_STATUS_ENABLED) == !!device->ring);
	REQUIRE(get(VGPU_REG_CONTROL) == (device->ring ? VGPU_CONTROL_ENABLE : 0));
	if (status & VGPU_STATUS_ERROR)
		REQUIRE(error);
	look_at_error(error);
	look_at_run_ns(known_run_ns);
	if (!known)
		REQUIRE(!fetched && !completed);
	else
		REQUIRE(known->fetched - known->completed <= min(rings.entries, VGPU_INFLIGHT_ITEMS) &&
			known->tail - known->completed <= rings.entries &&
			known->fetched - fetched <= rings.entries &&
			known->completed - completed <= rings.entries);
}

void vmm_opened(struct vgpu_device *opened, bool first)
{
	device = opened;
	known = NULL;
	known_error = 0;
	look_at_run_ns(0);
	/*
	 * An executor may have reported that its children use the processor before there were any.
	 */
	if (first && !lends())
		REQUIRE(!known_run_ns);
	REQUIRE(transfer(CONFIG, first_config, CONFIG_BYTES, false) == CONFIG_BYTES);
	REQUIRE(!(first_config[PCI_COMMAND] & PCI_COMMAND_MASTER));
	vmm_look();
}

/* ---- what it does */

static u64 some_address(void)
{
	switch (sim_below(64)) {
	case 0: return sim_random();
	case 1: return U64_MAX - sim_below(8) * 64;
	case 2: return 0 - 64 * (u64)(1 + sim_below(8192));
	case 3: return sim_below(RAM_BYTES);
	default: return sim_below(RAM_BYTES / 2) & ~63ull;
	}
}

static void start(void)
{
	if (sim_one_in(2))
		put(VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	put_config(PCI_COMMAND, PCI_COMMAND_MEMORY | (sim_one_in(16) ? 0 : PCI_COMMAND_MASTER), 2);
	put_address(VGPU_REG_RING_LO, some_address());
	put_address(VGPU_REG_COMPLETION_LO, some_address());
	put_address(VGPU_REG_SHADOW_LO, sim_one_in(4) ? 0 : some_address());
	put(VGPU_REG_RING_ENTRIES, sim_one_in(24) ? sim_below(8200) : 8u << sim_below(10));
	look_at_rings();
	put(VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
}

/* A stopped slice costs others nothing. */
static void put_doorbell(u32 value)
{
	bool stopped = known ? known->dead : get(VGPU_REG_ERROR);
	u64 doorbells = device->stats.doorbells;
	struct sim_counts before = sim_counts;

	put(VGPU_BAR0_DOORBELL, value);
	if (stopped)
		REQUIRE(sim_counts.spinlocks == before.spinlocks && sim_counts.wakes == before.wakes);
	REQUIRE(device->stats.doorbells == doorbells + 1);
}

void vmm_doorbell(u32 tail) { put(VGPU_BAR0_DOORBELL, tail); }

static void ring_doorbell(void)
{
	u32 tail = known ? known->tail : 0, wanted;
	u32 room = known ? rings.entries - (tail - known->completed) : 8;

	wanted = tail + (u32)sim_below(room + 1ull);
	if (sim_one_in(60))
		wanted = sim_one_in(2) ? sim_random() : tail - 1 - sim_below(4);
	else if (sim_one_in(60))
		wanted = tail + room + 1 + sim_below(16);
	put_doorbell(wanted);
	if (known && !known->dead)
		REQUIRE(known->tail == wanted);
}

static u64 some_position(void)
{
	u64 index = sim_below(sim_one_in(8) ? 12 : 2) ? VFIO_PCI_CONFIG_REGION_INDEX : 0;
	u64 offset;

	if (sim_one_in(8))
		index = sim_below(16);
	switch (sim_below(8)) {
	case 0: offset = sim_random(); break;
	case 1: offset = VGPU_BAR0_DOORBELL - 16 + sim_below(32); break;
	case 2: offset = VGPU_BAR0_MSIX_TABLE - 16 + sim_below(64); break;
	case 3: offset = VGPU_BAR0_BYTES - 16 + sim_below(32); break;
	case 4: offset = CONFIG_BYTES - 16 + sim_below(32); break;
	case 5: offset = EXPRESS_DEVCTL - 4 + sim_below(8); break;
	default: offset = sim_below(0x88);
	}
	return REGION(index) + offset;
}

static size_t region_bytes(u64 index)
{
	switch (index) {
	case VFIO_PCI_BAR0_REGION_INDEX: return VGPU_BAR0_BYTES;
	case VFIO_PCI_BAR2_REGION_INDEX: return lends() ? BAR2_BYTES : 0;
	case VFIO_PCI_CONFIG_REGION_INDEX: return CONFIG_BYTES;
	default: return 0;
	}
}

static void access_anything(bool write)
{
	u64 position = some_position(), index = position >> 40, offset = position & (REGION(1) - 1);
	size_t bytes = sim_below(sim_one_in(4) ? ACCESS_MAX : 9), size, expected;
	u8 data[ACCESS_MAX], before[ACCESS_MAX];
	ssize_t done;

	size = region_bytes(index);
	for (size_t i = 0; i < bytes; i++)
		before[i] = data[i] = sim_one_in(3) ? 0xff : sim_random();
	done = transfer(position, data, bytes, write);
	if ((s64)position < 0 || index >= VFIO_PCI_NUM_REGIONS || offset >= size) {
		REQUIRE(done == -EINVAL && sim_told("offset"));
	} else {
		expected = min(bytes, size - offset);
		REQUIRE(done == (ssize_t)expected);
		REQUIRE(!memcmp(data + expected, before + expected, bytes - expected));
		/* A window is memory to be mapped, and supports nothing else. */
		for (size_t i = 0; i < expected && index == VFIO_PCI_BAR2_REGION_INDEX; i++)
			REQUIRE(data[i] == (write ? before[i] : 0xff));
	}
}

static long call(unsigned int command, void *argument, size_t bytes)
{
	u8 *user = malloc(bytes ?: 1);
	long ret;

	REQUIRE(user);
	memcpy(user, argument, bytes);
	sim_user(user, bytes);
	ret = device->vdev.ops->ioctl(&device->vdev, command, (unsigned long)user);
	sim_user(NULL, 0);
	memcpy(argument, user, bytes);
	free(user);
	REQUIRE(ret <= 0 && ret > -4096);
	return ret;
}

static void ask_anything(void)
{
	static const unsigned int commands[] = {
		VFIO_DEVICE_GET_INFO, VFIO_DEVICE_GET_REGION_INFO, VFIO_DEVICE_GET_IRQ_INFO,
	};
	u64 words[8];
	u32 *fields = (u32 *)words;
	size_t bytes = sim_one_in(4) ? sim_below(sizeof(words)) : sizeof(words);
	unsigned int which = sim_below(ARRAY_SIZE(commands));
	unsigned int command = commands[which];
	static const size_t sizes[] = { 16, 32, 16 };	/* of those that must exist */
	u32 argsz, index;
	long ret;

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		words[i] = sim_random();
	argsz = fields[0] = sim_one_in(4) ? sim_below(40) : sizeof(words);
	index = fields[2] = sim_one_in(4) ? sim_random() : sim_below(12);
	if (sim_one_in(16))
		command = VFIO_DEVICE_GET_INFO + 64 + sim_below(1024);
	ret = call(command, words, bytes);
	if (command != commands[which])
		return;
	if (bytes < sizes[which])
		REQUIRE(ret == -EFAULT);
	else if (ret == 0 && which == 1)
		REQUIRE(index < VFIO_PCI_NUM_REGIONS && words[3] == REGION(index) &&
			words[2] == region_bytes(index));
	else if (ret == 0 && which == 2)
		REQUIRE(index < VFIO_PCI_NUM_IRQS && fields[3] <= VGPU_VECTORS);
	else
		REQUIRE(!which || !ret || ret == -EINVAL ||
			(ret == -ENOMEM && sim_has_failed && lends()));
	if (ret == -EINVAL)
		REQUIRE(sim_told(argsz < sizes[which] ? "argsz" : "index"));
	else
		REQUIRE(sim_told_nothing());
}

/* Each window is mapped separately; a caller with too small a buffer is told the size. */
static void ask_windows(void)
{
	const u32 bytes = sizeof(struct vfio_region_info) +
			  sizeof(struct vfio_region_info_cap_sparse_mmap) +
			  16 * sizeof(struct vfio_region_sparse_mmap_area);
	u64 words[64] = {};
	struct vfio_region_info *info = (void *)words;
	const struct vfio_region_info_cap_sparse_mmap *sparse = (void *)(info + 1);
	size_t room = sim_one_in(4) ? sizeof(*info) + sim_below(bytes) : bytes;
	long ret;

	info->argsz = room;
	info->index = VFIO_PCI_BAR2_REGION_INDEX;
	ret = call(VFIO_DEVICE_GET_REGION_INFO, words, room);
	REQUIRE(!ret || (ret == -ENOMEM && sim_has_failed));
	if (ret)
		return;
	REQUIRE(info->size == BAR2_BYTES && info->argsz == bytes &&
		info->flags == (VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE |
				VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS));
	REQUIRE(info->cap_offset == (room < bytes ? 0 : sizeof(*info)));
	if (room < bytes)
		return;
	REQUIRE(sparse->header.id == VFIO_REGION_INFO_CAP_SPARSE_MMAP && !sparse->header.next &&
		sparse->nr_areas == 16);
	for (u32 i = 0; i < 16; i++)
		REQUIRE(sparse->areas[i].offset == i * (4u << 20) && sparse->areas[i].size == 4u << 20);
}

/* Make one part of a request about an existing interrupt invalid. */
static const char *irqs_fault(const struct vfio_irq_set *set)
{
	u32 irqs = set->index == VFIO_PCI_MSIX_IRQ_INDEX ? VGPU_VECTORS : 1, size;

	if (set->start >= irqs)
		return "start";
	if (set->count > irqs - set->start)
		return "count";
	switch (set->flags & VFIO_IRQ_SET_DATA_TYPE_MASK) {
	case VFIO_IRQ_SET_DATA_NONE: size = 0; break;
	case VFIO_IRQ_SET_DATA_BOOL: size = sizeof(u8); break;
	case VFIO_IRQ_SET_DATA_EVENTFD: size = sizeof(s32); break;
	default: return "flags";
	}
	if (set->flags & ~(VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK))
		return "flags";
	if (set->argsz - sizeof(*set) < set->count * size)
		return "argsz";
	return "flags";		/* data for nobody */
}

static void set_irqs(void)
{
	static const u32 kinds[] = { VFIO_IRQ_SET_DATA_NONE, VFIO_IRQ_SET_DATA_BOOL,
				     VFIO_IRQ_SET_DATA_EVENTFD };
	u32 words[offsetof(struct vfio_irq_set, data) / sizeof(u32) + 8];
	struct vfio_irq_set *set = (struct vfio_irq_set *)words;
	long ret;

	*set = (struct vfio_irq_set){
		.argsz = sim_one_in(6) ? sim_below(64) : sizeof(words),
		.flags = kinds[sim_below(3)] | VFIO_IRQ_SET_ACTION_TRIGGER,
		.index = sim_one_in(8) ? sim_random() : sim_below(2) ? VFIO_PCI_MSIX_IRQ_INDEX :
								       VFIO_PCI_REQ_IRQ_INDEX,
		.start = sim_one_in(8) ? sim_random() : sim_below(3),
		.count = sim_one_in(8) ? sim_random() : sim_below(4),
	};
	if (sim_one_in(8))
		set->flags = sim_random() >> sim_below(64);
	for (size_t i = sizeof(*set) / sizeof(u32); i < ARRAY_SIZE(words); i++)
		words[i] = sim_one_in(4) ? (s32)sim_random() : (s32)sim_below(20) - 2;
	ret = call(VFIO_DEVICE_SET_IRQS, words,
		   sim_one_in(8) ? sim_below(sizeof(words)) : sizeof(words));
	REQUIRE(!ret || ret == -EINVAL || ret == -EFAULT || ret == -EBADF || ret == -ENOTTY ||
		(ret == -ENOMEM && sim_has_failed));
	if (!ret || ret == -EFAULT || ret == -ENOMEM)
		REQUIRE(sim_told_nothing());
	else if (set->argsz < sizeof(*set))
		REQUIRE(sim_told("argsz"));
	else if (set->index != VFIO_PCI_MSIX_IRQ_INDEX && set->index != VFIO_PCI_REQ_IRQ_INDEX)
		REQUIRE(sim_told("index"));
	else if (ret == -EINVAL)
		REQUIRE(sim_told(irqs_fault(set)));
	else
		REQUIRE(sim_told(ret == -ENOTTY ? "flags" : "data"));
}

void vmm_reset(void)
{
	bool resuming = migrate_state(device) == VFIO_DEVICE_STATE_RESUMING;

	guest_quiet = false;
	REQUIRE(!call(VFIO_DEVICE_RESET, &(u64){ 0 }, 0));
	REQUIRE(migrate_state(device) == VFIO_DEVICE_STATE_RUNNING);
	if (resuming)
		vmm_discarded();
	known_error = 0;
}

static void reset_in_some_way(void)
{
	switch (sim_random() % 3) {
	case 0: REQUIRE(!call(VFIO_DEVICE_RESET, &(u64){ 0 }, 0)); break;
	case 1: put_config(EXPRESS_DEVCTL, PCI_EXP_DEVCTL_BCR_FLR, 2); break;
	default: put(VGPU_REG_CONTROL, VGPU_CONTROL_RESET);
	}
}

/* No reset is refused, but beyond a burst of a thousand there is one per millisecond. */
static void reset_again_and_again(void)
{
	u64 begun_ns = sim_now_ns;

	for (int i = 0; i < 1100; i++)
		reset_in_some_way();
	REQUIRE(sim_now_ns - begun_ns >= 99 * NSEC_PER_MSEC);
	vmm_counts.storms++;
}

static void reset(void)
{
	vmm_counts.resets++;
	guest_quiet = false;
	switch (sim_below(4)) {
	case 0:
		vmm_reset();
		break;
	case 1:
		put_config(EXPRESS_DEVCTL, PCI_EXP_DEVCTL_BCR_FLR, 2);
		break;
	case 2:
		put_config(PCI_COMMAND, 0, 2);
		REQUIRE(!device->ring);
		return;
	default:
		put(VGPU_REG_CONTROL, VGPU_CONTROL_RESET | sim_random());
	}
	REQUIRE(!device->ring && !get(VGPU_REG_ERROR) && !get(VGPU_REG_RING_LO));
	known_error = 0;
	if (sim_random() % 64 == 0 && migrate_state(device) == VFIO_DEVICE_STATE_RUNNING)
		reset_again_and_again();
}

/* The function was unplugged: it reads as ones, whatever is written. */
void vmm_revoked(void)
{
	u8 config[CONFIG_BYTES];

	known = NULL;
	guest_disabled();
	for (int i = 0; i < 4; i++) {
		u32 value = VGPU_CONTROL_ENABLE;

		access_anything(sim_one_in(2));
		transfer(BAR0 + VGPU_REG_CONTROL, &value, sizeof(value), true);
		set_irqs();
		migrate_step(device);
		REQUIRE(!device->ring && get(sim_below(32) * 4) == U32_MAX);
	}
	REQUIRE(call(VFIO_DEVICE_RESET, &(u64){ 0 }, 0) == -ENODEV);
	REQUIRE(transfer(CONFIG, config, sizeof(config), false) == sizeof(config));
	for (u32 i = 0; i < CONFIG_BYTES; i++)
		REQUIRE(config[i] == 0xff);
}

void vmm_step(void)
{
	vmm_counts.steps++;
	look_at_rings();
	switch (sim_below(64)) {
	case 0: case 1: start(); break;
	case 2: access_anything(false); break;
	case 3: case 4: access_anything(true); break;
	case 5: lends() && sim_one_in(2) ? ask_windows() : ask_anything(); break;
	case 6: set_irqs(); break;
	case 7: reset(); break;
	case 8: put(sim_below(32) * 4, sim_random()); break;
	case 9: guest_mapped = !sim_one_in(6); break;
	case 10: sim_sleep(sim_below(40 * NSEC_PER_SEC)); break;
	case 15: case 16: case 17: migrate_step(device); break;
	case 11: case 12: case 13: case 14: sim_sleep(sim_below(3 * NSEC_PER_MSEC)); break;
	default:
		if (!known && !sim_one_in(16))
			start();
		else if (sim_below(2))
			ring_doorbell();
		else
			sim_sleep(sim_below(400 * NSEC_PER_USEC));
	}
	vmm_look();
	if (sim_one_in(4))
		look_at_config();
	guest_quiet = migrate_state(device) != VFIO_DEVICE_STATE_RUNNING;
}
