// SPDX-License-Identifier: GPL-2.0
/* The report of a saturating run, and its exit status. */
#include <errno.h>
#include <string.h>

#include "descriptor.h"
#include "exit.h"
#include "saturate.h"

static const char *ops_text(const struct workload_options *work, char *text,
			    size_t size)
{
	size_t used = 0;

	text[0] = '\0';
	for (uint32_t i = 0; i < work->op_count; i++) {
		const char *name = op_name(work->ops[i]);
		size_t length = strlen(name);

		if (used + length + 2 > size)
			break;
		if (used)
			text[used++] = '+';
		memcpy(text + used, name, length + 1);
		used += length;
	}
	return text;
}

void saturate_report(const struct saturate *run)
{
	const struct saturate_options *options = run->options;
	const struct saturate_result *result = &run->result;
	double wall_s = result->wall_ns / 1e9;
	struct report report;
	char ops[WORKLOAD_OPS_MAX * 8];

	report_begin(&report, run->json);
	report_text(&report, "record", "saturate");
	report_text(&report, "name", run->name);
	report_text(&report, "op", ops_text(&options->work, ops, sizeof(ops)));
	report_u64(&report, "rc", -result->rc);
	report_u64(&report, "items", result->items);
	report_u64(&report, "bytes", result->bytes);
	report_double(&report, "items_per_s",
		      wall_s > 0 ? result->items / wall_s : 0);
	report_u64(&report, "run_ns", result->run_ns);
	report_u64(&report, "wall_ns", result->wall_ns);
	report_u64(&report, "item_run_ns", result->item_run_ns);
	report_u64(&report, "item_run_ns_max", result->item_run_ns_max);
	report_u64(&report, "depth", result->depth);
	report_u64(&report, "batch", result->batch);
	if (result->min_queued != UINT32_MAX)
		report_u64(&report, "min_queued", result->min_queued);
	report_bool(&report, "saturated", result->saturated);
	report_u64(&report, "naps", result->naps);
	if (saturate_is_paced(options)) {
		report_u64(&report, "requests", result->requests);
		report_u64(&report, "request_ns", result->request_ns);
		report_u64(&report, "request_ns_max", result->request_ns_max);
	}
	report_u64(&report, "interrupts", result->interrupts);
	report_u64(&report, "submitted", run->submitted);
	report_u64(&report, "collected", result->collected);
	report_bool(&report, "drained", result->drained);
	report_u64(&report, "verified", result->verified);
	report_u64(&report, "mismatches", result->mismatches);
	if (result->mismatches)
		report_u64(&report, "first_mismatch", result->first_mismatch);
	report_u64(&report, "error", result->error);
	report_text(&report, "error_name", error_name(result->error));
	report_u64(&report, "error_index", result->error_index);
	if (result->rc)
		report_text(&report, "message", run->transport->message);
	report_end(&report);
}

int saturate_exit(const struct saturate *run)
{
	const struct saturate_result *result = &run->result;

	if (result->mismatches)
		return EXIT_WRONG;
	if (result->rc == -ETIMEDOUT)
		return EXIT_SILENT;
	if (result->rc == -EINVAL)
		return EXIT_USAGE;
	if (result->error)
		return EXIT_ERROR;
	if (result->rc)
		return EXIT_DEVICE;
	if (!saturate_is_napping(run->options) && run->options->queued_min &&
	    !result->saturated && run->submitted > result->depth)
		return EXIT_UNSATURATED;
	return EXIT_OK;
}
