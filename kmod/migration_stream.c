// SPDX-License-Identifier: GPL-2.0
/*
 * What may be in a migration stream. It comes from another host through a VMM, so
 * it is believed no more than a guest is: every field is checked against what this
 * device could have become by itself.
 *
 * Pure: looks at its arguments only. Built for the kernel and for tests.
 */
#ifdef __KERNEL__
#include <linux/string.h>
#include <asm/byteorder.h>

#include "compat.h"

static __u32 crc32c_of(const void *data, size_t bytes)
{
	return ~vgpu_crc32c(~0U, data, bytes);
}
#else
#include <endian.h>
#include <stddef.h>
#include "guest/tool/crc32c.h"
#define cpu_to_le32 htole32
#define cpu_to_le64 htole64
#define le32_to_cpu le32toh
#define le64_to_cpu le64toh
#define crc32c_of crc32c
#endif

#include "migration_stream.h"

__u32 vgpu_migration_checksum(const struct vgpu_migration_header *header)
{
	return crc32c_of(header, offsetof(struct vgpu_migration_header, checksum));
}

/**
 * vgpu_migration_format - make a header
 * @header: out, but for @config and @msix, which are there already
 * @state: of a stopped device
 * @memory_bytes: its device memory
 */
void vgpu_migration_format(struct vgpu_migration_header *header,
			   const struct vgpu_migration_state *state, __u64 memory_bytes)
{
	__u32 flags = 0;

	if (state->enabled)
		flags |= VGPU_MIGRATION_ENABLED;
	if (state->reported)
		flags |= VGPU_MIGRATION_REPORTED;
	header->magic = cpu_to_le64(VGPU_MIGRATION_MAGIC);
	header->version = cpu_to_le32(VGPU_MIGRATION_VERSION);
	header->header_bytes = cpu_to_le32(sizeof(*header));
	header->memory_bytes = cpu_to_le64(memory_bytes);
	header->abi = cpu_to_le32(VGPU_ABI);
	header->flags = cpu_to_le32(flags);
	header->ring = cpu_to_le64(state->setup.ring);
	header->completion = cpu_to_le64(state->setup.completion);
	header->shadow = cpu_to_le64(state->setup.shadow);
	header->run_ns = cpu_to_le64(state->run_ns);
	header->entries = cpu_to_le32(state->setup.entries);
	header->run_ns_hi = cpu_to_le32(state->run_ns_hi);
	header->tail = cpu_to_le32(state->tail);
	header->completed = cpu_to_le32(state->completed);
	header->error = cpu_to_le32(state->error);
	header->error_index = cpu_to_le32(state->error_index);
	header->reserved = 0;
	header->checksum = cpu_to_le32(vgpu_migration_checksum(header));
}

/* Did only bits change that can be written? */
static bool vgpu_bytes_reachable(const __u8 *bytes, const __u8 *initial,
				 const __u8 *writable, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if ((bytes[i] ^ initial[i]) & ~writable[i])
			return false;
	return true;
}

static const char *vgpu_migration_check_rings(const struct vgpu_migration_header *header,
					      const struct vgpu_migration_state *state)
{
	if (!state->enabled)
		return state->tail || state->completed ? "tail" : NULL;
	if (!vgpu_ring_setup_valid(&state->setup))
		return "ring";
	if (state->tail - state->completed > state->setup.entries)
		return "tail";
	/* PCI_COMMAND, PCI_COMMAND_MASTER: without it no ring stays enabled */
	return header->config[4] & 4 ? NULL : "config";
}

/**
 * vgpu_migration_parse - check a header and take it apart
 * @header: private copy, complete
 * @target: the device that is to take it over
 * @state: out, on success
 *
 * Return: NULL, or the name of the field that cannot be.
 */
const char *vgpu_migration_parse(const struct vgpu_migration_header *header,
				 const struct vgpu_migration_target *target,
				 struct vgpu_migration_state *state)
{
	__u32 abi = le32_to_cpu(header->abi);
	__u32 flags = le32_to_cpu(header->flags);

	if (le64_to_cpu(header->magic) != VGPU_MIGRATION_MAGIC)
		return "magic";
	if (le32_to_cpu(header->version) != VGPU_MIGRATION_VERSION)
		return "version";
	if (le32_to_cpu(header->header_bytes) != sizeof(*header))
		return "header_bytes";
	if (le32_to_cpu(header->checksum) != vgpu_migration_checksum(header))
		return "checksum";
	if (le64_to_cpu(header->memory_bytes) != target->memory_bytes)
		return "memory_bytes";
	if (abi >> 16 != VGPU_ABI_MAJOR || (abi & 0xffff) > VGPU_ABI_MINOR)
		return "abi";
	if (flags & ~VGPU_MIGRATION_FLAGS)
		return "flags";
	if (header->reserved)
		return "reserved";
	if (!vgpu_bytes_reachable(header->config, target->config, target->config_writable,
				  sizeof(header->config)))
		return "config";
	if (!vgpu_bytes_reachable(header->msix, target->msix, target->msix_writable,
				  sizeof(header->msix)))
		return "msix";

	state->setup.ring = le64_to_cpu(header->ring);
	state->setup.completion = le64_to_cpu(header->completion);
	state->setup.shadow = le64_to_cpu(header->shadow);
	state->setup.entries = le32_to_cpu(header->entries);
	state->run_ns = le64_to_cpu(header->run_ns);
	state->run_ns_hi = le32_to_cpu(header->run_ns_hi);
	state->tail = le32_to_cpu(header->tail);
	state->completed = le32_to_cpu(header->completed);
	state->error = le32_to_cpu(header->error);
	state->error_index = le32_to_cpu(header->error_index);
	state->enabled = flags & VGPU_MIGRATION_ENABLED;
	state->reported = flags & VGPU_MIGRATION_REPORTED;
	if (state->error >= VGPU_MIGRATION_ERRORS)
		return "error";
	return vgpu_migration_check_rings(header, state);
}
