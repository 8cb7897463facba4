// SPDX-License-Identifier: GPL-2.0
#include "verify_case.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"

uint8_t *verify_at(struct verify *verify, uint64_t offset)
{
	return verify->transport->area + offset;
}

void verify_outcome(struct verify *verify, const char *what, uint64_t size,
		    bool right, uint64_t run_ns)
{
	struct report report;

	verify->cases++;
	verify->failed += !right;
	report_begin(&report, verify->json);
	report_text(&report, "record", "verify");
	report_text(&report, "name", verify->name);
	report_text(&report, "case", what);
	report_u64(&report, "size", size);
	report_bool(&report, "ok", right);
	report_u64(&report, "run_ns", run_ns);
	if (verify->rc)
		report_text(&report, "message", verify->transport->message);
	report_end(&report);
}

bool verify_run(struct verify *verify, const struct vgpu_desc *descs,
		uint32_t count, uint64_t *run_ns, uint64_t *result)
{
	struct vgpu_completion found[SINGLE_ITEMS_MAX];

	*run_ns = 0;
	*result = 0;
	if (verify->rc)
		return false;
	verify->rc = single_run(verify->transport, descs, count, 0, TIMEOUT_NS,
				found);
	if (verify->rc)
		return false;
	for (uint32_t i = 0; i < count; i++)
		*run_ns += le64toh(found[i].run_ns);
	*result = le64toh(found[count - 1].result);
	return true;
}

void verify_spoil(struct verify *verify, uint64_t offset, size_t bytes)
{
	memset(verify_at(verify, offset), 0xa5, bytes);
}

bool verify_untouched(struct verify *verify, uint64_t offset, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (verify_at(verify, offset)[i] != 0xa5)
			return false;
	return true;
}

bool verify_filled(const uint8_t *data, size_t bytes, uint32_t pattern)
{
	uint32_t word = htole32(pattern);

	for (size_t i = 0; i < bytes; i += 4)
		if (memcmp(data + i, &word, 4))
			return false;
	return true;
}

bool verify_begin(struct verify *verify, struct transport *transport,
		  const char *name, bool json)
{
	*verify = (struct verify){
		.transport = transport, .name = name, .json = json,
	};
	verify->rc = transport->ops->map(transport, AREA_BYTES);
	return !verify->rc;
}

int verify_finish(struct verify *verify)
{
	struct report report;

	report_begin(&report, verify->json);
	report_text(&report, "record", "summary");
	report_text(&report, "name", verify->name);
	report_u64(&report, "cases", verify->cases);
	report_u64(&report, "failed", verify->failed);
	report_u64(&report, "rc", -verify->rc);
	if (verify->rc) {
		report_text(&report, "error_name",
			    error_name(verify->transport->error));
		report_text(&report, "message", verify->transport->message);
	}
	report_end(&report);
	if (verify->rc == -ETIMEDOUT)
		return EXIT_SILENT;
	if (verify->rc == -EIO)
		return EXIT_ERROR;
	if (verify->rc)
		return EXIT_DEVICE;
	return verify->failed ? EXIT_WRONG : EXIT_OK;
}
