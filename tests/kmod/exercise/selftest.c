// SPDX-License-Identifier: GPL-2.0
#include "selftest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "crc32c.h"
#include "exit.h"
#include "fuzz.h"
#include "hostile.h"
#include "reference.h"
#include "saturate.h"
#include "transport_fake.h"
#include "verify.h"

static const struct fake_options sound = {
	.corrupt_memory = FAKE_NEVER,
	.corrupt_result = FAKE_NEVER,
	.corrupt_cookie = FAKE_NEVER,
	.skip = FAKE_NEVER,
	.stop_at = FAKE_NEVER,
};

static unsigned int failures;

static void expect(const char *what, bool right)
{
	printf("%s %s\n", right ? "ok  " : "FAIL", what);
	failures += !right;
}

/* Saturate a fake device with @items of @op. */
static struct saturate_result saturated(const struct fake_options *fake,
					const char *op, uint64_t items,
					const char *verify, int *status)
{
	struct transport *transport = transport_fake_open(fake);
	struct saturate_options options;
	struct saturate run = { .options = &options, .transport = transport,
				.name = "fake" };

	saturate_defaults(&options);
	options.items = items;
	options.timeout_ns = 0;
	options.work.bytes = 1024;
	if (saturate_option(&options, "op", op) ||
	    saturate_option(&options, "verify", verify))
		expect("options are understood", false);
	if (saturate_prepare(&run) == 0)
		saturate_run(&run);
	*status = saturate_exit(&run);
	saturate_finish(&run);
	transport->ops->close(transport);
	return run.result;
}

static void test_crc32c(void)
{
	uint8_t zeros[32] = { 0 };

	expect("crc32c of the check string", crc32c("123456789", 9) == 0xe3069283);
	expect("crc32c of 32 zeros (RFC 3720)", crc32c(zeros, 32) == 0x8a9136aa);
	expect("crc32c of nothing", crc32c(zeros, 0) == 0);
}

static void test_gemm(void)
{
	const uint32_t a[] = { 1, 2, 3, 0xffffffff, 5, 6 };
	const uint32_t b[] = { 7, 8, 9, 10, 11, 0x80000000 };
	const uint32_t c[] = { 58, 28 + 0x80000000, 104, 42 };
	uint32_t found[4];

	reference_gemm(found, a, b, 2, 2, 3);
	expect("gemm modulo 2^32", !memcmp(found, c, sizeof(c)));
}

static void test_saturate(void)
{
	struct saturate_result result;
	struct fake_options fake = sound;
	int status;

	result = saturated(&fake, "mix", 5000, "1", &status);
	expect("a sound device passes", status == EXIT_OK && !result.mismatches);
	expect("every item was verified",
	       result.verified == 5000 && result.items == 5000);
	expect("the queue was never short",
	       result.saturated && result.min_queued == 224);
	result = saturated(&fake, "fill", 1000, "10", &status);
	expect("a sample is verified", result.verified == 100);
	expect("bytes are counted", result.bytes == 1000 * 1024);

	fake.eager = true;
	result = saturated(&fake, "fill", 5000, "1", &status);
	expect("an empty queue is noticed",
	       status == EXIT_UNSATURATED && result.min_queued == 0);
}

static void test_corruption(void)
{
	static const char *const writers[] = { "fill", "copy", "gemm" };
	struct saturate_result result;
	struct fake_options fake = sound;
	char what[64];
	int status;

	for (int i = 0; i < 3; i++) {
		fake = sound;
		fake.corrupt_memory = 777;
		result = saturated(&fake, writers[i], 2000, "1", &status);
		snprintf(what, sizeof(what), "one wrong bit of %s is noticed",
			 writers[i]);
		expect(what,
		       status == EXIT_WRONG && result.mismatches == 1 &&
		       result.first_mismatch == 777);
		fake = sound;
		fake.skip = 1500;
		result = saturated(&fake, writers[i], 2000, "1", &status);
		snprintf(what, sizeof(what), "%s that did not run is noticed",
			 writers[i]);
		expect(what, status == EXIT_WRONG && result.mismatches == 1);
	}
	fake = sound;
	fake.corrupt_result = 3;
	result = saturated(&fake, "crc32c", 2000, "1", &status);
	expect("a wrong crc is noticed",
	       status == EXIT_WRONG && result.mismatches == 1);
	fake = sound;
	fake.corrupt_cookie = 9;
	result = saturated(&fake, "nop", 2000, "0", &status);
	expect("a swapped answer is noticed",
	       status == EXIT_WRONG && result.mismatches == 1);
}

static void test_failure(void)
{
	struct saturate_result result;
	struct fake_options fake = sound;
	int status;

	fake.stop_at = 1000;
	result = saturated(&fake, "fill", 5000, "1", &status);
	expect("silence is noticed",
	       status == EXIT_SILENT && result.collected == 1000);
}

static void test_options(void)
{
	struct saturate_options options;

	saturate_defaults(&options);
	expect("fractions of units",
	       !saturate_option(&options, "delay-us", "2.5") &&
		       options.work.delay_ns == 2500);
	expect("seconds",
	       !saturate_option(&options, "seconds", "0.25") &&
	       options.duration_ns == NS_PER_S / 4);
	expect("negative numbers are refused",
	       saturate_option(&options, "items", "-1"));
	expect("words are refused", saturate_option(&options, "depth", "x"));
	expect("unknown operations are refused",
	       saturate_option(&options, "op", "fill+boil"));
	expect("unknown options are refused",
	       saturate_option(&options, "frobnicate", "1"));
}

/* 3 requests of 4 items each; @claim: an option, or NULL. */
static void test_request(const char *claim, uint32_t more, uint32_t ends)
{
	struct transport *transport = transport_fake_open(&sound);
	struct saturate_options options;
	struct saturate run = { .options = &options, .transport = transport,
				.name = "fake" };
	char what[64];

	saturate_defaults(&options);
	options.items = 12;
	if (saturate_option(&options, "request", "4") ||
	    saturate_option(&options, "gap-us", "1") ||
	    (claim && saturate_option(&options, claim, NULL)))
		expect("options of requests are understood", false);
	if (saturate_prepare(&run) == 0)
		saturate_run(&run);
	snprintf(what, sizeof(what), "requests that tell %s",
		 claim ? claim : "the truth");
	expect(what,
	       run.result.requests == 3 && run.result.items == 12 &&
	       transport_fake_flagged(transport, VGPU_DESC_MORE) == more &&
	       transport_fake_flagged(transport, VGPU_DESC_END) == ends);
	saturate_finish(&run);
	transport->ops->close(transport);
}

static void test_requests(void)
{
	test_request(NULL, 9, 0);
	test_request("lie", 12, 0);
	test_request("end", 12, 3);
}

static void test_suites(void)
{
	struct transport *transport = transport_fake_open(&sound);
	struct fake_options fake = sound;

	expect("the verify suite passes on a sound device",
	       verify_all(transport, "fake", false) == EXIT_OK);
	expect("the hostile suite passes on a sound device",
	       hostile_run(transport, hostile_descriptors,
			   hostile_descriptor_count, "all", false) == EXIT_OK);
	expect("fuzz passes on a sound device",
	       fuzz_run(transport, NS_PER_S / 10, 1, false) == EXIT_OK);
	transport->ops->close(transport);
	fake.corrupt_memory = 19; /* a gemm with all matrices in guest memory */
	transport = transport_fake_open(&fake);
	expect("the verify suite fails on a broken device",
	       verify_all(transport, "fake", false) == EXIT_WRONG);
	transport->ops->close(transport);
	fake.stop_at = 0;
	transport = transport_fake_open(&fake);
	expect("fuzz fails on a device that stays silent",
	       fuzz_run(transport, 0, 1, false) == EXIT_WRONG);
	transport->ops->close(transport);
}

int selftest_run(void)
{
	failures = 0;
	test_crc32c();
	test_gemm();
	test_options();
	test_saturate();
	test_corruption();
	test_failure();
	test_requests();
	test_suites();
	printf("selftest: %u failed\n", failures);
	return failures ? EXIT_WRONG : EXIT_OK;
}
