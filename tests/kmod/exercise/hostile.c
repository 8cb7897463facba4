// SPDX-License-Identifier: GPL-2.0
#include "hostile.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "descriptor.h"
#include "exit.h"
#include "report.h"
#include "single.h"

#define TIMEOUT_NS (30 * NS_PER_S)
#define BYTES 4096u

static struct vgpu_desc fill_device(uint64_t offset, uint32_t bytes)
{
	struct vgpu_desc desc = descriptor_fill(offset, bytes, 0);

	descriptor_flag(&desc, VGPU_DESC_DST_DEVICE);
	return desc;
}

static struct vgpu_desc gemm_device(uint64_t c, uint64_t a, uint64_t b,
				    uint32_t dim)
{
	struct vgpu_desc desc = descriptor_gemm(c, a, b, dim, dim, dim);

	descriptor_flag(&desc, VGPU_DESC_DST_DEVICE | VGPU_DESC_SRC_DEVICE |
				       VGPU_DESC_SRC2_DEVICE);
	return desc;
}

#define CASE(function) \
	static struct vgpu_desc function(const struct transport *transport)

/* The first operation number that the device does not have. */
CASE(unknown_op)
{
	uint16_t op = 0;

	while (transport->limits.ops >> op & 1)
		op++;
	return (struct vgpu_desc){ .op = htole16(op) };
}

CASE(huge_op)
{
	(void)transport;
	return (struct vgpu_desc){ .op = htole16(0xffff) };
}

CASE(unknown_flag)
{
	struct vgpu_desc desc = descriptor_nop();

	(void)transport;
	descriptor_flag(&desc, 0x8000);
	return desc;
}

CASE(reserved_field)
{
	struct vgpu_desc desc = descriptor_nop();

	(void)transport;
	desc.reserved = htole64(1ull << 63);
	return desc;
}

CASE(unused_argument)
{
	struct vgpu_desc desc = descriptor_nop();

	(void)transport;
	desc.arg[3] = htole32(1);
	return desc;
}

CASE(zero_size)
{
	(void)transport;
	return fill_device(0, 0);
}

CASE(misaligned_size)
{
	(void)transport;
	return fill_device(0, 6);
}

CASE(oversize)
{
	return descriptor_fill(0, transport->limits.item_bytes_max + 4, 0);
}

CASE(oversize_wrapping)
{
	(void)transport;
	return descriptor_crc32c(0, 0xffffffff);
}

CASE(gemm_zero)
{
	(void)transport;
	return gemm_device(0, 8192, 16384, 0);
}

CASE(gemm_large)
{
	(void)transport;
	return gemm_device(0, 8192, 16384, VGPU_GEMM_DIM_MAX + 1);
}

CASE(gemm_product_wraps)
{
	(void)transport;
	return gemm_device(0, 8192, 16384, 0x80000000);
}

CASE(gemm_overlap)
{
	(void)transport;
	return gemm_device(0, 4, 16384, 8);
}

CASE(address_overflow)
{
	(void)transport;
	return descriptor_fill(UINT64_MAX - 3, BYTES, 0);
}

CASE(device_overflow)
{
	(void)transport;
	return fill_device(UINT64_MAX - 3, BYTES);
}

CASE(device_end)
{
	return fill_device(transport->limits.memory_bytes - 4, 8);
}

CASE(device_beyond)
{
	return fill_device(transport->limits.memory_bytes, 4);
}

CASE(unmapped_destination)
{
	return descriptor_fill(transport->unmapped, BYTES, 0);
}

CASE(unmapped_source)
{
	return descriptor_crc32c(transport->unmapped, BYTES);
}

CASE(delay_zero)
{
	(void)transport;
	return descriptor_delay(0);
}

CASE(delay_long)
{
	return descriptor_delay(transport->limits.delay_ns_max + 1);
}

CASE(nosplit_long)
{
	struct vgpu_desc desc =
		descriptor_delay(transport->limits.chunk_ns_max + 1);

	descriptor_flag(&desc, VGPU_DESC_NOSPLIT);
	return desc;
}

const struct hostile_case hostile_descriptors[] = {
	{ "op", VGPU_ERROR_OP, NULL, unknown_op },
	{ "op-huge", VGPU_ERROR_OP, NULL, huge_op },
	{ "flags", VGPU_ERROR_FLAGS, NULL, unknown_flag },
	{ "reserved", VGPU_ERROR_FLAGS, NULL, reserved_field },
	{ "argument", VGPU_ERROR_FLAGS, NULL, unused_argument },
	{ "size-zero", VGPU_ERROR_SIZE, NULL, zero_size },
	{ "size-misaligned", VGPU_ERROR_SIZE, NULL, misaligned_size },
	{ "size-over", VGPU_ERROR_SIZE, NULL, oversize },
	{ "size-wrapping", VGPU_ERROR_SIZE, NULL, oversize_wrapping },
	{ "gemm-zero", VGPU_ERROR_SIZE, NULL, gemm_zero },
	{ "gemm-large", VGPU_ERROR_SIZE, NULL, gemm_large },
	{ "gemm-wrapping", VGPU_ERROR_SIZE, NULL, gemm_product_wraps },
	{ "gemm-overlap", VGPU_ERROR_ADDRESS, NULL, gemm_overlap },
	{ "address-overflow", VGPU_ERROR_ADDRESS, NULL, address_overflow },
	{ "device-overflow", VGPU_ERROR_ADDRESS, NULL, device_overflow },
	{ "device-end", VGPU_ERROR_ADDRESS, NULL, device_end },
	{ "device-beyond", VGPU_ERROR_ADDRESS, NULL, device_beyond },
	{ "unmapped-destination", VGPU_ERROR_DMA, NULL, unmapped_destination },
	{ "unmapped-source", VGPU_ERROR_DMA, NULL, unmapped_source },
	{ "delay-zero", VGPU_ERROR_SIZE, NULL, delay_zero },
	{ "delay-long", VGPU_ERROR_SIZE, NULL, delay_long },
	{ "nosplit-long", VGPU_ERROR_CHUNK, NULL, nosplit_long },
};

const size_t hostile_descriptor_count =
	sizeof(hostile_descriptors) / sizeof(hostile_descriptors[0]);

/* A good item before the bad one and another after it; neither may hide the bad one. */
static int attack_with(struct transport *transport, struct vgpu_desc bad,
		       uint32_t *completed)
{
	struct vgpu_completion found[SINGLE_ITEMS_MAX];
	struct vgpu_desc descs[] = { descriptor_nop(), bad, descriptor_nop() };
	uint32_t outstanding;
	int rc;

	rc = transport->ops->submit(transport, descs, 3, TRANSPORT_RAW,
				    &outstanding);
	if (rc)
		return rc;
	return transport->ops->wait(transport, found, SINGLE_ITEMS_MAX, 3,
				    TIMEOUT_NS, completed);
}

/* After a reset the slice works, from item number zero on. */
static bool recovers(struct transport *transport)
{
	struct vgpu_desc desc = descriptor_nop();
	struct vgpu_completion found;
	struct transport_counters counters;

	if (transport->ops->reset(transport))
		return false;
	desc.cookie = htole64(0xfeed);
	if (single_run(transport, &desc, 1, 0, TIMEOUT_NS, &found) ||
	    le64toh(found.cookie) != 0xfeed || le32toh(found.seq) != 1)
		return false;
	return !transport->ops->counters(transport, &counters) &&
	       !counters.error && counters.completed == 1;
}

static bool run_case(struct transport *transport,
		     const struct hostile_case *hostile, bool json)
{
	struct transport_counters counters = { 0 };
	uint32_t completed = 0;
	struct report report;
	bool stopped, recovered, right;
	int rc;

	/* from empty rings, so that the bad item has number 1 */
	rc = transport->ops->reset(transport);
	if (!rc && hostile->desc)
		rc = attack_with(transport, hostile->desc(transport), &completed);
	else if (!rc)
		rc = hostile->attack(transport);
	stopped = rc == -EIO;
	if (transport->ops->counters(transport, &counters) == 0)
		stopped = stopped && counters.status & VGPU_STATUS_ERROR;
	right = stopped && counters.error == hostile->expected;
	/* no item after the bad one may have run */
	if (hostile->desc)
		right = right && counters.error_index == 1 && completed <= 1;

	recovered = recovers(transport);
	report_begin(&report, json);
	report_text(&report, "record", "hostile");
	report_text(&report, "case", hostile->name);
	report_text(&report, "expected", error_name(hostile->expected));
	report_text(&report, "error_name", error_name(counters.error));
	report_u64(&report, "error", counters.error);
	report_u64(&report, "error_index", counters.error_index);
	report_u64(&report, "completed", completed);
	report_bool(&report, "recovered", recovered);
	report_bool(&report, "ok", right && recovered);
	if (!right || !recovered) {
		report_u64(&report, "rc", -rc);
		report_text(&report, "message", transport->message);
	}
	report_end(&report);
	return right && recovered;
}

int hostile_run(struct transport *transport, const struct hostile_case *cases,
		size_t count, const char *name, bool json)
{
	bool every = !strcmp(name, "all"), found = false, right = true;

	for (size_t i = 0; i < count; i++) {
		if (!every && strcmp(name, cases[i].name))
			continue;
		found = true;
		right &= run_case(transport, &cases[i], json);
	}
	if (!found)
		return -1;
	return right ? EXIT_OK : EXIT_WRONG;
}

void hostile_list(const struct hostile_case *cases, size_t count)
{
	for (size_t i = 0; i < count; i++)
		printf("%s %s\n", cases[i].name, error_name(cases[i].expected));
}
