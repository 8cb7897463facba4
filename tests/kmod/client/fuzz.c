// SPDX-License-Identifier: GPL-2.0
/*
 * A hostile VMM and guest: three threads use the device's file, its rings and its memory in
 * random ways at the same time, until the device is closed under them and opened again.
 * Nothing has to work. Answers must be documented ones, and memory that is mapped read-only
 * must not change.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client.h"
#include "clock.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "transport_vfio.h"

#define AREA_BYTES (1u << 20)
#define CANARY_IOVA 0x200000000ull
#define CANARY_BYTES (64u << 10)
#define CANARY 0xa5
#define REGION_SHIFT 40

struct fuzz {
	const char *uuid;
	struct transport_vfio *vfio;
	uint8_t *canary;
	atomic_bool stop;
	_Atomic uint64_t accesses, calls, doorbells, enables, resets, unmaps, surprises;
	_Atomic int surprise;
	uint64_t lives, errors_seen;
};

struct player {
	struct fuzz *fuzz;
	pthread_t thread;
	uint64_t random;
};

static uint64_t some(struct player *player)
{
	player->random ^= player->random << 13;
	player->random ^= player->random >> 7;
	player->random ^= player->random << 17;
	return player->random * 0x2545f4914f6cdd1dull;
}

static uint64_t below(struct player *player, uint64_t limit)
{
	return (some(player) >> 16) % limit;
}

/* An errno no caller expects is a defect. */
static void judge(struct fuzz *fuzz, long rc)
{
	static const int known[] = { EINVAL, EFAULT, ENOTTY, EBADF, ENOMEM, E2BIG,
				     ENODEV, EBUSY, EIO, ENOSPC, EOPNOTSUPP, EINTR };

	if (rc >= 0)
		return;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (errno == known[i])
			return;
	fuzz->surprises++;
	fuzz->surprise = errno;
}

/* Restoring a stream that is not a slice has its own errno. */
static void judge_restored(struct fuzz *fuzz, long rc)
{
	if (rc >= 0 || errno != EPROTONOSUPPORT)
		judge(fuzz, rc);
}

/* ---- the VMM: its file */

static uint64_t some_position(struct player *player)
{
	static const uint64_t edges[] = { 0, VGPU_BAR0_DOORBELL, VGPU_BAR0_MSIX_TABLE,
					  VGPU_BAR0_MSIX_PBA, VGPU_BAR0_BYTES, 0x100 };
	uint64_t index = below(player, 3) ? VFIO_PCI_BAR0_REGION_INDEX :
					    VFIO_PCI_CONFIG_REGION_INDEX;
	uint64_t offset = below(player, 0x70);

	if (below(player, 16) == 0)
		index = below(player, 12);
	if (below(player, 4) == 0)
		offset = edges[below(player, 6)] + below(player, 48) - 24;
	if (below(player, 32) == 0)
		offset = some(player);
	return (index << REGION_SHIFT) + offset;
}

static void access_anything(struct player *player)
{
	static const size_t sizes[] = { 1, 2, 4, 8, 3, 16, 64, 4096 };
	struct fuzz *fuzz = player->fuzz;
	int fd = fuzz->vfio->vfio.device;
	uint64_t position = some_position(player);
	size_t bytes = sizes[below(player, below(player, 8) ? 4 : 8)];
	uint8_t data[4096];

	for (size_t i = 0; i < bytes; i++)
		data[i] = below(player, 3) ? 0xff : some(player);
	fuzz->accesses++;
	if (below(player, 2))
		judge(fuzz, pwrite(fd, data, bytes, position));
	else
		judge(fuzz, pread(fd, data, bytes, position));
	if (below(player, 64) == 0)
		judge(fuzz, pread(fd, (void *)(uintptr_t)below(player, 4096), bytes, position));
}

/* A state transition for which the device may have made a file. */
static void play_with_file(struct player *player, int fd)
{
	uint8_t data[256];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = some(player);
	for (uint64_t rounds = below(player, 4); rounds; rounds--)
		if (below(player, 2))
			judge(player->fuzz, read(fd, data, below(player, sizeof(data))));
		else
			judge_restored(player->fuzz,
				       write(fd, data, below(player, sizeof(data))));
	close(fd);
}

static void ask_for_migration(struct player *player)
{
	struct {
		struct vfio_device_feature feature;
		struct vfio_device_feature_mig_state state;
	} ask = {
		.feature.argsz = sizeof(ask),
		.feature.flags = VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE |
				 (below(player, 4) ? VFIO_DEVICE_FEATURE_SET :
						     VFIO_DEVICE_FEATURE_GET),
		.state = { .device_state = below(player, 9), .data_fd = -1 },
	};
	long rc = ioctl(player->fuzz->vfio->vfio.device, VFIO_DEVICE_FEATURE, &ask);

	judge(player->fuzz, rc);
	if (!rc && ask.state.data_fd >= 0)
		play_with_file(player, ask.state.data_fd);
}

static void call_anything(struct player *player)
{
	static const unsigned long commands[] = {
		VFIO_DEVICE_GET_INFO, VFIO_DEVICE_GET_REGION_INFO,
		VFIO_DEVICE_GET_IRQ_INFO, VFIO_DEVICE_SET_IRQS,
		VFIO_DEVICE_SET_IRQS, VFIO_DEVICE_SET_IRQS,
		VFIO_DEVICE_GET_PCI_HOT_RESET_INFO, VFIO_DEVICE_FEATURE,
	};
	struct fuzz *fuzz = player->fuzz;
	unsigned long command = commands[below(player, 8)];
	uint32_t words[1024];

	for (size_t i = 0; i < 64; i++)
		words[i] = below(player, 3) ? below(player, 6) : some(player);
	words[0] = below(player, 4) ? sizeof(words) : below(player, 64);
	if (command == VFIO_DEVICE_SET_IRQS) {
		words[1] = below(player, 8) ? 1u << below(player, 3) | 1u << 5 : some(player);
		words[2] = below(player, 8) ? VFIO_PCI_MSIX_IRQ_INDEX + 2 * below(player, 2) :
					      some(player);
		for (size_t i = 5; i < 64; i++)
			if (below(player, 2))
				words[i] = fuzz->vfio->eventfds[below(player, 2)];
	}
	if (below(player, 16) == 0)
		command = _IO(VFIO_TYPE, VFIO_BASE + below(player, 32));
	fuzz->calls++;
	judge(fuzz, ioctl(fuzz->vfio->vfio.device, command,
			  below(player, 32) ? (uintptr_t)words : some(player)));
	if (below(player, 4) == 0)
		ask_for_migration(player);
	if (below(player, 64) == 0 &&
	    mmap(NULL, 4096, PROT_READ, MAP_SHARED, fuzz->vfio->vfio.device,
		 below(player, 16) << REGION_SHIFT) != MAP_FAILED)
		fuzz->surprises++;
}

static void *vmm(void *data)
{
	struct player *player = data;
	struct fuzz *fuzz = player->fuzz;

	while (!fuzz->stop) {
		switch (below(player, 8)) {
		case 0:
			if (below(player, 8) == 0) {
				judge(fuzz, ioctl(fuzz->vfio->vfio.device, VFIO_DEVICE_RESET));
				fuzz->resets++;
			}
			break;
		case 1:
		case 2:
			call_anything(player);
			break;
		default:
			access_anything(player);
		}
		if (below(player, 16) == 0)
			clock_sleep_ns(below(player, 2 * NS_PER_MS));
	}
	return NULL;
}

/* ---- the guest: its rings */

static struct vgpu_desc some_desc(struct player *player)
{
	uint64_t at = VFIO_AREA_IOVA + below(player, AREA_BYTES);
	uint32_t bytes = 4 + 4 * below(player, below(player, 16) ? 64 : 1 << 18);
	struct vgpu_desc desc;

	switch (below(player, 6)) {
	case 0: desc = descriptor_fill(at, bytes, some(player)); break;
	case 1: desc = descriptor_copy(at, VFIO_AREA_IOVA, bytes); break;
	case 2: desc = descriptor_crc32c(at, bytes); break;
	case 3:
		desc = descriptor_gemm(at, VFIO_AREA_IOVA, VFIO_AREA_IOVA + 4096,
				       1 + below(player, 20), 1 + below(player, 20),
				       1 + below(player, 20));
		break;
	case 4: desc = descriptor_fill(CANARY_IOVA, bytes, some(player)); break;
	default: desc = descriptor_delay(below(player, 400 * NS_PER_US));
	}
	desc.kernel_id = htole32(below(player, 8));
	descriptor_flag(&desc, (below(player, 4) ? 0 : VGPU_DESC_MORE) |
				       (below(player, 16) ? 0 : VGPU_DESC_END));
	if (below(player, 64) == 0)
		for (size_t i = 0; i < sizeof(desc); i++)
			((uint8_t *)&desc)[i] ^= below(player, 16) ? 0 : some(player);
	return desc;
}

static void start(struct player *player)
{
	struct transport_vfio *vfio = player->fuzz->vfio;
	struct ring_registers registers = transport_vfio_registers(vfio);

	switch (below(player, 32)) {
	case 0: registers.entries = some(player); break;
	case 1: registers.ring = some(player); break;
	case 2: registers.completion = CANARY_IOVA; break;
	case 3: registers.shadow = CANARY_IOVA; break;
	case 4: registers.ring = VFIO_UNMAPPED_IOVA; break;
	}
	vfio_master(&vfio->vfio, below(player, 16));
	transport_vfio_program(vfio, &registers);
	vfio_write32(&vfio->vfio, VGPU_REG_CONTROL, VGPU_CONTROL_ENABLE);
	player->fuzz->enables++;
}

/* Rewritten as fast as possible, even while the device reads it. */
static void scribble(struct player *player, uint32_t count)
{
	struct transport_vfio *vfio = player->fuzz->vfio;

	for (uint32_t i = 0; i < count; i++)
		vfio->ring[below(player, vfio->entries)] = some_desc(player);
}

static void *guest(void *data)
{
	struct player *player = data;
	struct fuzz *fuzz = player->fuzz;
	struct vfio *vfio = &fuzz->vfio->vfio;
	uint32_t error;

	while (!fuzz->stop) {
		scribble(player, 32);
		fuzz->vfio->tail += below(player, 32) ? below(player, 16) : some(player);
		vfio_write32(vfio, VGPU_BAR0_DOORBELL, fuzz->vfio->tail);
		fuzz->doorbells++;
		for (uint64_t storm = below(player, 64) ? 0 : below(player, 3000); storm; storm--)
			vfio_write32(vfio, VGPU_BAR0_DOORBELL, fuzz->vfio->tail);
		scribble(player, 32);
		error = vfio_read32(vfio, VGPU_REG_ERROR);
		if (error < 64)
			fuzz->errors_seen |= 1ull << error;
		if (error || below(player, 64) == 0)
			start(player);
		if (below(player, 4) == 0)
			clock_sleep_ns(below(player, NS_PER_MS));
	}
	return NULL;
}

/* ---- its memory */

static void *unmapper(void *data)
{
	static const uint64_t iovas[] = { VFIO_AREA_IOVA, VFIO_RING_IOVA, VFIO_COMPLETION_IOVA,
					  VFIO_SHADOW_IOVA };
	struct player *player = data;
	struct fuzz *fuzz = player->fuzz;
	struct transport_vfio *vfio = fuzz->vfio;
	void *memory[] = { vfio->base.area, vfio->ring, vfio->completions, vfio->shadow };
	size_t bytes[] = { AREA_BYTES, vfio->entries * 64, vfio->entries * 32, 4096 };

	while (!fuzz->stop) {
		uint64_t which = below(player, 2) ? 0 : below(player, 4);
		size_t size = (bytes[which] + 4095) & ~(size_t)4095;

		for (uint64_t storm = 1 + below(player, 16); storm; storm--) {
			if (vfio_unmap(&vfio->vfio, iovas[which], size) ||
			    vfio_map(&vfio->vfio, memory[which], iovas[which], size)) {
				judge(fuzz, -1);
				return NULL;
			}
			fuzz->unmaps++;
		}
		clock_sleep_ns(below(player, 4 * NS_PER_MS));
	}
	return NULL;
}

static int map_canary(struct fuzz *fuzz)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ,
		.vaddr = (uintptr_t)fuzz->canary,
		.iova = CANARY_IOVA,
		.size = CANARY_BYTES,
	};

	return ioctl(fuzz->vfio->vfio.container, VFIO_IOMMU_MAP_DMA, &map);
}

/* One life of the device, from open to close. 0, or the reason why it could not be opened. */
static int live(struct fuzz *fuzz, struct player *players, uint64_t duration_ns)
{
	static void *(*const parts[])(void *) = { vmm, guest, unmapper };
	struct transport *transport;
	char message[192];
	int rc;

	transport = transport_vfio_open(fuzz->uuid, 8u << below(players, 8), message,
					sizeof(message));
	if (!transport) {
		fprintf(stderr, "vgpu-client: fuzz: %s\n", message);
		return -ENODEV;
	}
	fuzz->vfio = to_vfio(transport);
	fuzz->stop = false;
	fuzz->lives++;
	rc = transport->ops->map(transport, AREA_BYTES) ? -ENOMEM : map_canary(fuzz);
	for (int i = 0; i < 3 && !rc; i++)
		rc = -pthread_create(&players[i].thread, NULL, parts[i], &players[i]);
	if (rc)
		return rc;
	clock_sleep_ns(duration_ns);
	fuzz->stop = true;
	for (int i = 0; i < 3; i++)
		pthread_join(players[i].thread, NULL);
	if (below(players, 2)) /* items, and an engine in the middle of an item */
		vfio_write32(&fuzz->vfio->vfio, VGPU_BAR0_DOORBELL, ++fuzz->vfio->tail);
	transport->ops->close(transport);
	return 0;
}

static bool canary_intact(const struct fuzz *fuzz)
{
	for (size_t i = 0; i < CANARY_BYTES; i++)
		if (fuzz->canary[i] != CANARY)
			return false;
	return true;
}

int client_fuzz(const char *uuid, uint64_t duration_ns, uint64_t seed, bool json)
{
	uint64_t end_ns = clock_now_ns() + duration_ns;
	struct fuzz fuzz = { .uuid = uuid };
	struct player players[3];
	struct report report;
	bool right;
	int rc = 0;

	fuzz.canary = mmap(NULL, CANARY_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (fuzz.canary == MAP_FAILED)
		return EXIT_DEVICE;
	memset(fuzz.canary, CANARY, CANARY_BYTES);
	for (int i = 0; i < 3; i++)
		players[i] = (struct player){ .fuzz = &fuzz,
					      .random = (seed + 1) * 0x9e3779b97f4a7c15ull + i };
	while (!rc && clock_now_ns() < end_ns)
		rc = live(&fuzz, players, below(players, 400 * NS_PER_MS));
	right = !rc && canary_intact(&fuzz) && !fuzz.surprises;

	report_begin(&report, json);
	report_text(&report, "record", "fuzz");
	report_u64(&report, "seed", seed);
	report_u64(&report, "lives", fuzz.lives);
	report_u64(&report, "accesses", fuzz.accesses);
	report_u64(&report, "calls", fuzz.calls);
	report_u64(&report, "doorbells", fuzz.doorbells);
	report_u64(&report, "enables", fuzz.enables);
	report_u64(&report, "resets", fuzz.resets);
	report_u64(&report, "unmaps", fuzz.unmaps);
	report_hex(&report, "errors_seen", fuzz.errors_seen);
	report_u64(&report, "surprises", fuzz.surprises);
	report_u64(&report, "surprise", fuzz.surprise);
	report_bool(&report, "canary_intact", canary_intact(&fuzz));
	report_u64(&report, "rc", -rc);
	report_bool(&report, "ok", right);
	report_end(&report);
	return right ? EXIT_OK : EXIT_WRONG;
}
