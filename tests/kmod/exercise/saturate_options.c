// SPDX-License-Identifier: GPL-2.0
/* Options of saturating runs, shared by the command lines and vgpu-client's --slice. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "descriptor.h"
#include "saturate.h"

#define DURATION_NS (10 * NS_PER_S)

const char saturate_help[] =
	"  --op A+B+..       operations taken in turn: nop fill copy crc32c gemm delay fact,\n"
	"                    mix = fill+copy+crc32c+gemm (default: fill)\n"
	"  --bytes N         operand size of fill, copy, crc32c (4096)\n"
	"  --dim N           gemm of N x N matrices (32)\n"
	"  --delay-us N      engine time of a delay item (1000); --delay-ns N\n"
	"  --fact-n N        a fact item computes N! or one of the three before (20)\n"
	"  --nosplit         items execute in one piece\n"
	"  --verify N        check every Nth item's memory, 0 none (1)\n"
	"  --seed N          of the data (1)\n"
	"  --kernel-id N     base of the kernel ids given to the device\n"
	"  --seconds S       length of the measured phase (10 unless --items)\n"
	"  --items N         end after N items instead\n"
	"  --depth N         items kept queued; --batch N: items per refill\n"
	"  --queued-min N    fewest queued items that count as saturated (8)\n"
	"  --request N       N items belong together: all but the last say that more\n"
	"                    follow\n"
	"  --gap-us N        wait for each of them, then sleep; --nap-us after the last\n"
	"  --lie             a request's last item says so, too\n"
	"  --end             the same, but an empty item ends the request at once\n"
	"  --nap-us N        submit a batch (1 item unless --batch), wait for it, sleep\n"
	"  --progress-ms N   report progress so often\n"
	"  --timeout-s S     give up when nothing completes for so long (60)\n"
	"  --drain-s S       at the end wait so long for queued items (10)\n"
	"exit status 6: fewer items queued than --queued-min\n";

static const char *parse_u64(const char *text, uint64_t max, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 0);
	if (errno || end == text || *end || *text == '-')
		return "not a whole number";
	return *value > max ? "too large" : NULL;
}

static const char *parse_scaled(const char *text, uint64_t unit, uint64_t *ns)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= 0))
		return "not a number";
	if (value * unit > 1e18)
		return "too large";
	*ns = value * unit;
	return NULL;
}

static const char *parse_ops(const char *text, struct workload_options *work)
{
	static const char mix[] = "fill+copy+crc32c+gemm";

	if (!strcmp(text, "mix"))
		text = mix;
	work->op_count = 0;
	for (;;) {
		size_t length = strcspn(text, "+");
		char name[16];
		int op;

		if (length >= sizeof(name) || work->op_count == WORKLOAD_OPS_MAX)
			return "not a list of operations";
		memcpy(name, text, length);
		name[length] = '\0';
		op = op_by_name(name);
		if (op < 0)
			return "unknown operation";
		work->ops[work->op_count++] = op;
		if (!text[length])
			return NULL;
		text += length + 1;
	}
}

void saturate_defaults(struct saturate_options *options)
{
	*options = (struct saturate_options){
		.timeout_ns = 60 * NS_PER_S,
		.drain_ns = 10 * NS_PER_S,
		.queued_min = SATURATE_QUEUED_MIN,
	};
	workload_defaults(&options->work);
}

void saturate_complete(struct saturate_options *options)
{
	if (!options->duration_ns && !options->items)
		options->duration_ns = DURATION_NS;
}

bool saturate_option_is_flag(const char *key)
{
	return !strcmp(key, "nosplit") || !strcmp(key, "lie") ||
	       !strcmp(key, "end");
}

static const char *set_u32(const char *value, uint32_t *field)
{
	uint64_t number;
	const char *why = parse_u64(value, UINT32_MAX, &number);

	if (!why)
		*field = number;
	return why;
}

const char *saturate_option(struct saturate_options *options, const char *key,
			    const char *value)
{
	struct workload_options *work = &options->work;
	const char *why;
	uint64_t ns;

	if (saturate_option_is_flag(key)) {
		if (value && *value)
			return "takes no value";
		if (!strcmp(key, "nosplit"))
			work->nosplit = true;
		else if (!strcmp(key, "lie"))
			options->lie = true;
		else
			options->end = true;
		return NULL;
	}
	if (!value || !*value)
		return "needs a value";
	if (!strcmp(key, "op"))
		return parse_ops(value, work);
	if (!strcmp(key, "bytes"))
		return set_u32(value, &work->bytes);
	if (!strcmp(key, "dim"))
		return set_u32(value, &work->dimension);
	if (!strcmp(key, "delay-us") || !strcmp(key, "delay-ns")) {
		why = parse_scaled(value, key[6] == 'u' ? NS_PER_US : 1, &ns);
		if (!why && ns > UINT32_MAX)
			why = "too large";
		if (!why)
			work->delay_ns = ns;
		return why;
	}
	if (!strcmp(key, "fact-n"))
		return set_u32(value, &work->fact_n);
	if (!strcmp(key, "verify"))
		return parse_u64(value, UINT64_MAX, &work->verify_every);
	if (!strcmp(key, "seed"))
		return parse_u64(value, UINT64_MAX, &work->seed);
	if (!strcmp(key, "kernel-id"))
		return set_u32(value, &work->kernel_id);
	if (!strcmp(key, "seconds"))
		return parse_scaled(value, NS_PER_S, &options->duration_ns);
	if (!strcmp(key, "items"))
		return parse_u64(value, UINT64_MAX, &options->items);
	if (!strcmp(key, "depth"))
		return set_u32(value, &options->depth);
	if (!strcmp(key, "batch"))
		return set_u32(value, &options->batch);
	if (!strcmp(key, "queued-min"))
		return set_u32(value, &options->queued_min);
	if (!strcmp(key, "request"))
		return set_u32(value, &options->request);
	if (!strcmp(key, "gap-us"))
		return parse_scaled(value, NS_PER_US, &options->gap_ns);
	if (!strcmp(key, "nap-us"))
		return parse_scaled(value, NS_PER_US, &options->nap_ns);
	if (!strcmp(key, "progress-ms"))
		return parse_scaled(value, NS_PER_MS, &options->progress_ns);
	if (!strcmp(key, "timeout-s"))
		return parse_scaled(value, NS_PER_S, &options->timeout_ns);
	if (!strcmp(key, "drain-s"))
		return parse_scaled(value, NS_PER_S, &options->drain_ns);
	return "unknown option";
}

bool saturate_is_paced(const struct saturate_options *options)
{
	return options->request && options->gap_ns;
}

bool saturate_is_napping(const struct saturate_options *options)
{
	return options->nap_ns || saturate_is_paced(options);
}
