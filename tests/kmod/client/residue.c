// SPDX-License-Identifier: GPL-2.0
/* Device memory must hold nothing that an earlier user left. Leaves a pattern. */
#include <endian.h>

#include "client.h"
#include "clock.h"
#include "crc32c.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"

#define BLOCK (1u << 20)
#define TIMEOUT_NS (60 * NS_PER_S)
#define PATTERN 0xa5c3961eu

/* CRC-32C of @bytes of device memory at @offset. */
static int device_crc(struct transport *transport, uint64_t offset,
		      struct vgpu_completion *found)
{
	struct vgpu_desc desc = descriptor_crc32c(offset, BLOCK);

	descriptor_flag(&desc, VGPU_DESC_SRC_DEVICE);
	return single_run(transport, &desc, 1, TRANSPORT_RAW, TIMEOUT_NS, found);
}

static int device_fill(struct transport *transport, uint64_t offset)
{
	struct vgpu_desc desc = descriptor_fill(offset, BLOCK, PATTERN);
	struct vgpu_completion found;

	descriptor_flag(&desc, VGPU_DESC_DST_DEVICE);
	return single_run(transport, &desc, 1, TRANSPORT_RAW, TIMEOUT_NS, &found);
}

int client_residue(struct transport *transport, bool json)
{
	static const uint8_t zeros[BLOCK];
	uint64_t bytes = transport->limits.memory_bytes, offset, dirty = 0;
	uint32_t clean = crc32c(zeros, BLOCK);
	struct vgpu_completion found;
	struct report report;
	int rc = 0;

	for (offset = 0; !rc && offset < bytes; offset += BLOCK) {
		rc = device_crc(transport, offset, &found);
		dirty += !rc && le64toh(found.result) != clean;
		if (!rc)
			rc = device_fill(transport, offset);
	}
	/* the check must detect the pattern that was just written */
	if (!rc)
		rc = device_crc(transport, 0, &found);
	report_begin(&report, json);
	report_text(&report, "record", "residue");
	report_u64(&report, "bytes", bytes);
	report_u64(&report, "dirty", dirty);
	report_u64(&report, "rc", -rc);
	report_bool(&report, "notices", !rc && le64toh(found.result) != clean);
	report_end(&report);
	if (rc)
		return EXIT_DEVICE;
	return dirty || le64toh(found.result) == clean ? EXIT_WRONG : EXIT_OK;
}
