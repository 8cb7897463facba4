// SPDX-License-Identifier: GPL-2.0
/*
 * The rest of the kernel in which the module seems to run: memory, which may run
 * out, user space, eventfds, and VFIO, whose file the fuzzer uses.
 */
#include "sim.h"

#include <malloc.h>
#include <stdarg.h>

#define EVENTFDS 24

struct eventfd_ctx {
	u64 refs, signals;
};

unsigned int sim_failures;
bool sim_has_failed;
struct sim_counts sim_counts;

static struct eventfd_ctx eventfds[EVENTFDS];
static u64 allocations, memcgs;

/* ---- the log */

void kfuzz_tell(const char *format, ...)
{
	char line[sizeof(current->told)];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	if (!strncmp(line, "stopped: ", 9))
		sim_counts.told_stops++;	/* possibly by a thread */
	else if (strstr(line, " refused"))
		memcpy(current->told, line, sizeof(line));
}

bool sim_told(const char *field)
{
	char wanted[40];

	snprintf(wanted, sizeof(wanted), " refused for %s: ", field);
	return strstr(current->told, wanted);
}

bool sim_told_nothing(void) { return !*current->told; }

bool sim_told_restoring(const char *fault)
{
	char wanted[80];

	snprintf(wanted, sizeof(wanted), "restore refused: %s", fault);
	return !strncmp(current->told, wanted, strlen(wanted));
}

void sim_forget_told(void) { *current->told = 0; }

/* ---- memory */

bool sim_fails(void)
{
	if (!sim_failures || !sim_one_in(sim_failures))
		return false;
	sim_counts.failed_allocations++;
	sim_has_failed = true;
	return true;
}

void *kfuzz_alloc(size_t bytes, gfp_t flags)
{
	if (flags & GFP_KERNEL) {
		might_sleep();
		REQUIRE(!sim_is_realtime());
	}
	if (sim_fails())
		return NULL;
	if (flags & GFP_KERNEL)
		sim_maybe_preempt();
	allocations++;
	return calloc(1, bytes);
}

/* Only a guest, or a saved stream, contains this word. */
static bool is_guests(u64 word)
{
	return word >> 16 == SIM_GUESTS >> 16 || !memcmp(&word, "VGPUMIG1", sizeof(word));
}

void kfree_sensitive(const void *memory)
{
	if (!memory)
		return;
	allocations--;
	free((void *)memory);
}

/* Memory that others may get next must hold nothing of a guest, beyond the part that is cleared. */
void kvfree_sensitive(const void *memory, size_t cleared)
{
	size_t bytes = malloc_usable_size((void *)memory);
	u64 word;

	REQUIRE(cleared <= bytes);
	for (size_t at = (cleared + 3) & ~3ul; at + sizeof(word) <= bytes; at += sizeof(u32)) {
		memcpy(&word, (const u8 *)memory + at, sizeof(word));
		REQUIRE(!is_guests(word));
	}
	kfree_sensitive(memory);
}

void kfree(const void *memory) { kvfree_sensitive(memory, 0); }

struct mem_cgroup *get_mem_cgroup_from_mm(struct mm_struct *mm)
{
	REQUIRE(mm);	/* a VMM's, never a kernel thread's */
	memcgs++;
	return (struct mem_cgroup *)&memcgs;
}

void mem_cgroup_put(struct mem_cgroup *group)
{
	if (group)
		memcgs--;
}

void sim_user(void *memory, size_t bytes)
{
	current->user_memory = memory;
	current->user_bytes = bytes;
	if (memory)
		sim_forget_told();
}

static bool is_user(const void *at, size_t bytes)
{
	size_t offset = (const char *)at - (const char *)current->user_memory;

	might_sleep();
	return offset <= current->user_bytes && bytes <= current->user_bytes - offset;
}

unsigned long copy_from_user(void *to, const void *from, unsigned long bytes)
{
	sim_maybe_preempt();
	if (!is_user(from, bytes))
		return bytes;
	memcpy(to, from, bytes);
	return 0;
}

unsigned long copy_to_user(void *to, const void *from, unsigned long bytes)
{
	sim_maybe_preempt();
	if (!is_user(to, bytes))
		return bytes;
	memcpy(to, from, bytes);
	return 0;
}

void *memdup_user(const void *from, size_t bytes)
{
	void *copy = kfuzz_alloc(bytes, GFP_KERNEL);

	if (!copy)
		return ERR_PTR(-ENOMEM);
	if (!copy_from_user(copy, from, bytes))
		return copy;
	kfree(copy);
	return ERR_PTR(-EFAULT);
}

u32 vgpu_crc32c(u32 crc, const void *data, size_t bytes)
{
	static u32 table[256];
	const u8 *at = data;

	for (u32 i = 0; !table[1] && i < 256; i++) {
		u32 entry = 255 - i;	/* the second is filled in last */

		table[255 - i] = entry;
		for (int bit = 0; bit < 8; bit++)
			table[255 - i] = table[255 - i] >> 1 ^
					 (table[255 - i] & 1 ? 0x82f63b78 : 0);
	}
	while (bytes--)
		crc = crc >> 8 ^ table[(crc ^ *at++) & 0xff];
	return crc;
}

/* ---- eventfds: the first few numbers are valid, the others are not */

struct eventfd_ctx *eventfd_ctx_fdget(int fd)
{
	if (fd < 0 || fd >= EVENTFDS)
		return ERR_PTR(-EBADF);
	eventfds[fd].refs++;
	return &eventfds[fd];
}

void eventfd_ctx_put(struct eventfd_ctx *ctx)
{
	REQUIRE(ctx->refs > 0);
	ctx->refs--;
}

void vgpu_eventfd_signal(struct eventfd_ctx *ctx)
{
	REQUIRE(ctx->refs > 0);
	ctx->signals++;
	sim_counts.signals++;
}

u64 sim_signals(int fd) { return eventfds[fd].signals; }

struct sim_leaks sim_leaks(void)
{
	struct sim_leaks leaks = { .allocations = allocations, .memcgs = memcgs,
				   .files = sim_files_left(), .pids = sim_pids_left(),
				   .threads = sim_threads_left(), .timers = sim_timers_left() };

	for (unsigned int i = 0; i < EVENTFDS; i++)
		leaks.eventfds += eventfds[i].refs;
	return leaks;
}

/* Good enough for the one that is all zeros. */
int guid_parse(const char *text, guid_t *guid)
{
	memset(guid, 0, sizeof(*guid));
	for (int i = 0; i < UUID_STRING_LEN; i++) {
		bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;

		if (hyphen ? text[i] != '-' : !isalnum(text[i]))
			return -EINVAL;
		guid->b[i % 16] |= text[i] != '-' && text[i] != '0';
	}
	return 0;
}

/* ---- VFIO */

struct vfio_device *kfuzz_vfio_alloc(size_t bytes, size_t member, struct device *device,
				     const struct vfio_device_ops *ops)
{
	char *memory = kfuzz_alloc(bytes, GFP_KERNEL);
	struct vfio_device *vdev;
	int ret;

	REQUIRE(!member);	/* as vfio_alloc_device() does */
	if (!memory)
		return ERR_PTR(-ENOMEM);
	vdev = (struct vfio_device *)memory;
	vdev->dev = device;
	vdev->ops = ops;
	vdev->device.refs = 1;
	ret = ops->init(vdev);
	if (!ret)
		return vdev;
	kfree(memory);
	return ERR_PTR(ret);
}

void get_device(struct device *device)
{
	REQUIRE(device->refs > 0);
	device->refs++;
}

void put_device(struct device *device)
{
	struct vfio_device *vdev = container_of(device, struct vfio_device, device);

	REQUIRE(device->refs > 0);
	if (--device->refs)
		return;
	vdev->ops->release(vdev);
	kfree(vdev);
}

void vfio_put_device(struct vfio_device *vdev) { put_device(&vdev->device); }

/* The path between two states, with P2P; drivers/vfio/vfio_main.c has it as a table. */
int vfio_mig_get_next_state(struct vfio_device *vdev, enum vfio_device_mig_state now,
			    enum vfio_device_mig_state wanted, enum vfio_device_mig_state *next)
{
	(void)vdev;
	if (now == VFIO_DEVICE_STATE_ERROR || wanted > VFIO_DEVICE_STATE_RUNNING_P2P ||
	    wanted == VFIO_DEVICE_STATE_ERROR)
		return -EINVAL;
	switch (now) {
	case VFIO_DEVICE_STATE_RUNNING:
		*next = VFIO_DEVICE_STATE_RUNNING_P2P;
		break;
	case VFIO_DEVICE_STATE_RUNNING_P2P:
		*next = wanted == VFIO_DEVICE_STATE_RUNNING ? wanted : VFIO_DEVICE_STATE_STOP;
		break;
	case VFIO_DEVICE_STATE_STOP:
		*next = wanted == VFIO_DEVICE_STATE_RUNNING ? VFIO_DEVICE_STATE_RUNNING_P2P :
							      wanted;
		break;
	default:
		*next = VFIO_DEVICE_STATE_STOP;
	}
	return 0;
}

int vfio_register_emulated_iommu_dev(struct vfio_device *vdev)
{
	(void)vdev;
	return sim_fails() ? -ENOMEM : 0;
}

void vfio_unregister_group_dev(struct vfio_device *vdev)
{
	might_sleep();
	guest_let_go(vdev);
}

/* As drivers/vfio/vfio_main.c has it. */
int vfio_set_irqs_validate_and_prepare(struct vfio_irq_set *set, int irqs, int most,
				       size_t *bytes)
{
	const u32 flags = VFIO_IRQ_SET_DATA_TYPE_MASK | VFIO_IRQ_SET_ACTION_TYPE_MASK;
	size_t size;

	if (set->argsz < offsetofend(struct vfio_irq_set, count) ||
	    set->index >= (u32)most || set->count >= U32_MAX - set->start ||
	    set->flags & ~flags)
		return -EINVAL;
	if (set->start >= (u32)irqs || set->start + set->count > (u32)irqs)
		return -EINVAL;
	switch (set->flags & VFIO_IRQ_SET_DATA_TYPE_MASK) {
	case VFIO_IRQ_SET_DATA_NONE:
		size = 0;
		break;
	case VFIO_IRQ_SET_DATA_BOOL:
		size = sizeof(u8);
		break;
	case VFIO_IRQ_SET_DATA_EVENTFD:
		size = sizeof(s32);
		break;
	default:
		return -EINVAL;
	}
	if (size) {
		if (set->argsz - offsetofend(struct vfio_irq_set, count) < set->count * size)
			return -EINVAL;
		*bytes = set->count * size;
	}
	return 0;
}

/* As drivers/vfio/vfio_main.c has them. */
int vfio_info_add_capability(struct vfio_info_cap *caps, struct vfio_info_cap_header *cap,
			     size_t bytes)
{
	struct vfio_info_cap_header *buf, *last;

	bytes = (bytes + 7) & ~7ul;
	buf = kfuzz_alloc(caps->size + bytes, GFP_KERNEL);
	if (!buf)
		return -ENOMEM;
	if (caps->size)
		memcpy(buf, caps->buf, caps->size);
	for (last = buf; caps->size && last->next;)
		last = (void *)((u8 *)buf + last->next);
	if (caps->size)
		last->next = caps->size;
	memcpy((u8 *)buf + caps->size, cap, bytes);
	((struct vfio_info_cap_header *)((u8 *)buf + caps->size))->next = 0;
	kfree(caps->buf);
	*caps = (struct vfio_info_cap){ .buf = buf, .size = caps->size + bytes };
	return 0;
}

void vfio_info_cap_shift(struct vfio_info_cap *caps, size_t offset)
{
	struct vfio_info_cap_header *cap = caps->buf;

	for (u32 next = cap->next; next; next = cap->next) {
		cap->next += offset;
		cap = (void *)((u8 *)caps->buf + next);
	}
}

/*
 * Guest memory answers, fails, or does not answer for any time, until its accessor is killed.
 * Other threads run meanwhile.
 */
int vfio_dma_rw(struct vfio_device *vdev, dma_addr_t guest, void *data, size_t bytes,
		bool write)
{
	int ret;

	might_sleep();
	if (write)
		sim_counts.dma_writes++;
	else
		sim_counts.dma_reads++;
	ret = guest_access(vdev, guest, data, bytes, write);
	sim_maybe_preempt();
	return ret;
}
