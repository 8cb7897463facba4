// SPDX-License-Identifier: GPL-2.0
/*
 * Clients that change memory during use: operand memory is unmapped while items run, and
 * descriptors are rewritten while they are read. The slice may stop with an error each time.
 * It must always work again after a reset, and never write where it must not.
 */
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"
#include "transport_vfio.h"

#define BATCH 16u
#define OPERAND 16384u
#define CANARY 0x5a
#define TIMEOUT_NS (30 * NS_PER_S)
/* work items, then a range that nobody may write to */
#define AREA_BYTES (4 * BATCH * OPERAND)

struct race {
	struct transport *transport;
	atomic_bool stop;
	pthread_t thread;
	uint64_t disturbed;
	uint64_t batches;
	uint64_t faults;
	uint64_t errors_seen; /* bit n: enum vgpu_error n */
	int rc;
};

static int submit_batch(struct race *race, struct vgpu_completion *found,
			uint32_t *count)
{
	struct transport *transport = race->transport;
	struct vgpu_desc descs[BATCH];
	uint32_t outstanding;
	int rc;

	for (uint32_t i = 0; i < BATCH; i++) {
		uint64_t at = i * 2ull * OPERAND;

		descs[i] = i % 2 ? descriptor_copy(at, at + OPERAND, OPERAND) :
				   descriptor_fill(at, OPERAND, i);
		descs[i].cookie = htole64(i);
	}
	*count = 0;
	rc = transport->ops->submit(transport, descs, BATCH, 0, &outstanding);
	if (rc)
		return rc;
	return transport->ops->wait(transport, found, BATCH, BATCH, TIMEOUT_NS,
				    count);
}

/* Submit until the time is over, resetting after each error. */
static void run_batches(struct race *race, uint64_t end_ns)
{
	struct vgpu_completion found[BATCH];
	struct transport *transport = race->transport;
	uint32_t count;

	while (!race->rc && clock_now_ns() < end_ns) {
		int rc = submit_batch(race, found, &count);

		race->batches++;
		if (rc == -EIO) {
			race->faults++;
			race->errors_seen |= 1ull << (transport->error & 63);
			rc = transport->ops->reset(transport);
		}
		race->rc = rc;
	}
}

static bool canary_intact(const struct transport *transport, uint64_t from)
{
	for (uint64_t at = from; at < transport->area_bytes; at++)
		if (transport->area[at] != CANARY)
			return false;
	return true;
}

/* After all of this: does it still work without any disturbance? */
static bool works(struct race *race)
{
	struct vgpu_completion found[BATCH];
	uint32_t count;

	return !race->transport->ops->reset(race->transport) &&
	       !submit_batch(race, found, &count) && count == BATCH;
}

static int finish(struct race *race, const char *record, uint64_t allowed,
		  bool intact, bool json)
{
	bool right, recovered = works(race);
	struct report report;

	right = !race->rc && recovered && intact && race->disturbed &&
		race->batches && !(race->errors_seen & ~allowed);
	report_begin(&report, json);
	report_text(&report, "record", record);
	report_u64(&report, "batches", race->batches);
	report_u64(&report, "disturbed", race->disturbed);
	report_u64(&report, "faults", race->faults);
	report_hex(&report, "errors_seen", race->errors_seen);
	report_bool(&report, "canary_intact", intact);
	report_bool(&report, "recovered", recovered);
	report_u64(&report, "rc", -race->rc);
	if (race->rc)
		report_text(&report, "message", race->transport->message);
	report_bool(&report, "ok", right);
	report_end(&report);
	return right ? EXIT_OK : EXIT_WRONG;
}

static void *unmapper(void *data)
{
	struct race *race = data;
	struct transport *transport = race->transport;
	struct vfio *vfio = &to_vfio(transport)->vfio;

	while (!atomic_load(&race->stop)) {
		if (vfio_unmap(vfio, VFIO_AREA_IOVA, transport->area_bytes))
			break;
		race->disturbed++;
		if (race->disturbed % 2)
			clock_sleep_ns(100 * NS_PER_US);
		if (vfio_map(vfio, transport->area, VFIO_AREA_IOVA,
			     transport->area_bytes))
			break;
		clock_sleep_ns(race->disturbed % 7 * 300 * NS_PER_US);
	}
	return NULL;
}

static int begin(struct race *race, struct transport *transport,
		 void *(*disturb)(void *))
{
	*race = (struct race){ .transport = transport };
	race->rc = transport->ops->map(transport, AREA_BYTES);
	if (race->rc)
		return race->rc;
	memset(transport->area, CANARY, transport->area_bytes);
	race->rc = -pthread_create(&race->thread, NULL, disturb, race);
	return race->rc;
}

static int could_not(struct race *race)
{
	fprintf(stderr, "vgpu-client: %s\n",
		race->transport->message[0] ? race->transport->message :
					      strerror(-race->rc));
	return EXIT_DEVICE;
}

int client_unmap_race(struct transport *transport, uint64_t duration_ns,
		      bool json)
{
	struct race race;

	if (begin(&race, transport, unmapper))
		return could_not(&race);
	run_batches(&race, clock_now_ns() + duration_ns);
	atomic_store(&race.stop, true);
	pthread_join(race.thread, NULL);
	return finish(&race, "unmap-race",
		      1u << VGPU_ERROR_NONE | 1u << VGPU_ERROR_DMA,
		      canary_intact(transport, 2ull * BATCH * OPERAND), json);
}

/* One way to corrupt a descriptor; the good value is written back later. */
static void spoil(volatile struct vgpu_desc *desc, uint32_t how)
{
	switch (how % 4) {
	case 0:
		desc->arg[0] = htole32(0xfffffffc);
		break;
	case 1:
		desc->dst = htole64(VFIO_UNMAPPED_IOVA);
		break;
	case 2:
		desc->op = htole16(0x7777);
		break;
	case 3:
		desc->op = htole16(VGPU_OP_GEMM_I32);
		break;
	}
}

/* Turn good descriptors into bad ones and back. */
static void *rewriter(void *data)
{
	struct race *race = data;
	struct transport_vfio *vfio = to_vfio(race->transport);

	for (uint32_t round = 0; !atomic_load(&race->stop); round++) {
		for (uint32_t i = 0; i < vfio->entries && i < 4 * BATCH; i++) {
			volatile struct vgpu_desc *desc = &vfio->ring[i];
			uint16_t op = desc->op;
			uint64_t dst = desc->dst;
			uint32_t bytes = desc->arg[0];

			spoil(desc, round);
			/* with one processor, others see it only if this thread sleeps */
			if (round % 16 == 0 && i % BATCH == 0)
				clock_sleep_ns(50 * NS_PER_US);
			desc->op = op;
			desc->dst = dst;
			desc->arg[0] = bytes;
		}
		race->disturbed++;
		if (round % 64 == 0)
			clock_sleep_ns(50 * NS_PER_US);
	}
	return NULL;
}

int client_toctou(struct transport *transport, uint64_t duration_ns, bool json)
{
	const uint64_t allowed = 1u << VGPU_ERROR_NONE | 1u << VGPU_ERROR_DMA |
				 1u << VGPU_ERROR_OP | 1u << VGPU_ERROR_FLAGS |
				 1u << VGPU_ERROR_SIZE | 1u << VGPU_ERROR_ADDRESS;
	struct race race;

	if (begin(&race, transport, rewriter))
		return could_not(&race);
	run_batches(&race, clock_now_ns() + duration_ns);
	atomic_store(&race.stop, true);
	pthread_join(race.thread, NULL);
	return finish(&race, "toctou", allowed,
		      canary_intact(transport, 2ull * BATCH * OPERAND), json);
}
