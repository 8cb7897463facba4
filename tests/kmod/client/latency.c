// SPDX-License-Identifier: GPL-2.0
/* One item every period, measured from its doorbell to its completion. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "client.h"
#include "clock.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"

#define TIMEOUT_NS (60 * NS_PER_S)

static int by_value(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

/* Smallest value that @permille of all do not exceed. */
static uint64_t quantile(const uint64_t *sorted, uint64_t count,
			 uint64_t permille)
{
	uint64_t rank = (count * permille + 999) / 1000;

	return count ? sorted[rank ? rank - 1 : 0] : 0;
}

int client_latency(struct transport *transport, uint64_t duration_ns,
		   uint64_t period_ns, uint32_t delay_ns, bool json)
{
	uint64_t most = duration_ns / period_ns + 1, count = 0, late = 0;
	uint64_t *latencies = calloc(most, sizeof(*latencies));
	uint64_t begun_ns, next_ns, run_ns = 0, worst_ns = 0, worst_item = 0;
	struct vgpu_desc desc = delay_ns ? descriptor_delay(delay_ns) :
					   descriptor_nop();
	struct report report;
	int rc = 0;

	if (!latencies) {
		fprintf(stderr, "vgpu-client: latency: out of memory\n");
		return EXIT_DEVICE;
	}
	/*
	 * the measurement is of the device, not of the faults of our own pages
	 */
	if (mlockall(MCL_CURRENT)) {
		fprintf(stderr, "vgpu-client: latency: locking memory: %s\n",
			strerror(errno));
		free(latencies);
		return EXIT_DEVICE;
	}
	begun_ns = clock_now_ns();
	next_ns = begun_ns;
	while (!rc && count < most && next_ns - begun_ns < duration_ns) {
		struct vgpu_completion found;
		uint64_t from_ns;

		clock_sleep_until_ns(next_ns);
		from_ns = clock_now_ns();
		rc = single_run(transport, &desc, 1, 0, TIMEOUT_NS, &found);
		if (rc)
			break;
		latencies[count] = clock_now_ns() - from_ns;
		if (latencies[count] > worst_ns) {
			worst_ns = latencies[count];
			worst_item = count;
		}
		count++;
		run_ns += found.run_ns;
		next_ns += period_ns;
		/* a late item delays the next one and does not cause a burst */
		if (next_ns < clock_now_ns()) {
			next_ns = clock_now_ns() + period_ns;
			late++;
		}
	}
	qsort(latencies, count, sizeof(*latencies), by_value);
	report_begin(&report, json);
	report_text(&report, "record", "latency");
	report_u64(&report, "items", count);
	report_u64(&report, "late", late);
	report_u64(&report, "period_ns", period_ns);
	report_u64(&report, "delay_ns", delay_ns);
	report_u64(&report, "item_run_ns", run_ns);
	report_u64(&report, "p50_ns", quantile(latencies, count, 500));
	report_u64(&report, "p90_ns", quantile(latencies, count, 900));
	report_u64(&report, "p99_ns", quantile(latencies, count, 990));
	report_u64(&report, "max_ns", quantile(latencies, count, 1000));
	report_u64(&report, "worst_item", worst_item);
	report_u64(&report, "rc", -rc);
	if (rc)
		report_text(&report, "message", transport->message);
	report_end(&report);
	munlockall();
	free(latencies);
	return rc ? EXIT_DEVICE : EXIT_OK;
}
