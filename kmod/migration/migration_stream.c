// SPDX-License-Identifier: GPL-2.0
/*
 * The valid contents of a migration stream. It comes from another host through a
 * VMM, so it is trusted no more than a guest: every field is checked against the
 * states that this device could have reached by itself.
 *
 * The functions only use their arguments. They are built for the kernel and for
 * tests.
 */
#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/string.h>
#include <asm/byteorder.h>

#include "compat.h"

static __u32 crc32c_of(const void *data, size_t bytes)
{
	return ~vgpu_crc32c(~0U, data, bytes);
}
#else
#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include "guest/tool/crc32c.h"
#define cpu_to_le32 htole32
#define cpu_to_le64 htole64
#define le32_to_cpu le32toh
#define le64_to_cpu le64toh
#define crc32c_of crc32c
#endif

#include "migration/migration_stream.h"

__u32 vgpu_migration_checksum(const struct vgpu_migration_header *header)
{
	return crc32c_of(header, offsetof(struct vgpu_migration_header, checksum));
}

/**
 * vgpu_migration_format - fill in a header
 * @header: out; @config and @msix are filled in already
 * @state: state of a stopped device
 * @target: the stopped device
 */
void vgpu_migration_format(struct vgpu_migration_header *header,
			   const struct vgpu_migration_state *state,
			   const struct vgpu_migration_target *target)
{
	__u32 flags = 0;

	if (state->enabled)
		flags |= VGPU_MIGRATION_ENABLED;
	if (state->reported)
		flags |= VGPU_MIGRATION_REPORTED;
	header->magic = cpu_to_le64(VGPU_MIGRATION_MAGIC);
	header->version = cpu_to_le32(VGPU_MIGRATION_VERSION);
	header->header_bytes = cpu_to_le32(sizeof(*header));
	header->memory_bytes = cpu_to_le64(target->memory_bytes);
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
	memcpy(header->engine, target->engine, sizeof(header->engine));
	header->operations = cpu_to_le32(target->operations);
	header->checksum = cpu_to_le32(vgpu_migration_checksum(header));
}

/* Do @bytes differ from @initial only in writable bits? */
static bool vgpu_bytes_reachable(const __u8 *bytes, const __u8 *initial,
				 const __u8 *writable, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if ((bytes[i] ^ initial[i]) & ~writable[i])
			return false;
	return true;
}

/* Return the name of a field that another version of the module has written, or NULL. */
static const char *vgpu_migration_foreign(const struct vgpu_migration_header *header)
{
	__u32 abi = le32_to_cpu(header->abi);

	if (le64_to_cpu(header->magic) != VGPU_MIGRATION_MAGIC)
		return "magic";
	if (le32_to_cpu(header->version) != VGPU_MIGRATION_VERSION)
		return "version";
	if (le32_to_cpu(header->header_bytes) != sizeof(*header))
		return "header_bytes";
	if (abi >> 16 != VGPU_ABI_MAJOR || (abi & 0xffff) > VGPU_ABI_MINOR)
		return "abi";
	return NULL;
}

/* Return the field with a value that no device has, or NULL. */
static const char *vgpu_migration_malformed(const struct vgpu_migration_header *header,
					    const struct vgpu_migration_target *target)
{
	if (le32_to_cpu(header->checksum) != vgpu_migration_checksum(header))
		return "checksum";
	if (le32_to_cpu(header->flags) & ~VGPU_MIGRATION_FLAGS)
		return "flags";
	if (!vgpu_bytes_reachable(header->config, target->config, target->config_writable,
				  sizeof(header->config)))
		return "config";
	if (!vgpu_bytes_reachable(header->msix, target->msix, target->msix_writable,
				  sizeof(header->msix)))
		return "msix";
	return NULL;
}

/*
 * Return the field that shows another kind of device, or NULL. An engine may have more
 * operations here than on the host that saved the slice, but a guest must never find
 * fewer than before.
 */
static const char *vgpu_migration_other_engine(const struct vgpu_migration_header *header,
					       const struct vgpu_migration_target *target)
{
	if (memcmp(header->engine, target->engine, sizeof(header->engine)))
		return "engine";
	if (le32_to_cpu(header->operations) & ~target->operations)
		return "operations";
	return NULL;
}

static void vgpu_migration_take_apart(const struct vgpu_migration_header *header,
				      struct vgpu_migration_state *state)
{
	__u32 flags = le32_to_cpu(header->flags);

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
}

/* Return the field with a state that no device reaches, or NULL. */
static const char *vgpu_migration_impossible(const struct vgpu_migration_header *header,
					     const struct vgpu_migration_state *state)
{
	/*
	 * run_ns was measured with a 63-bit clock, so a valid value never wraps when
	 * this host adds to it.
	 */
	if (state->run_ns >> 63)
		return "run_ns";
	if (state->error > VGPU_MIGRATION_ERROR_MAX)
		return "error";
	if (state->error_index && !state->error)
		return "error_index";
	if (state->reported && (!state->enabled || !state->error))
		return "flags";
	if (!state->enabled)
		return state->tail || state->completed ? "tail" : NULL;
	if (vgpu_ring_setup_fault(&state->setup))
		return "ring";
	if (state->tail - state->completed > state->setup.entries)
		return "tail";
	/* PCI_COMMAND, PCI_COMMAND_MASTER: without bus mastering no ring stays enabled */
	return header->config[4] & 4 ? NULL : "config";
}

/**
 * vgpu_migration_parse - check and decode a header
 * @header: private copy, complete
 * @target: the device to restore to
 * @state: out, on success
 * @fault: out, on failure: the name of the invalid field
 *
 * Return: 0; -EPROTONOSUPPORT for a stream of another version; -ERANGE for another
 * size of device memory; -EOPNOTSUPP for a stream from another engine; -EINVAL for
 * a stream that no device has made.
 */
int vgpu_migration_parse(const struct vgpu_migration_header *header,
			 const struct vgpu_migration_target *target,
			 struct vgpu_migration_state *state, const char **fault)
{
	*fault = vgpu_migration_foreign(header);
	if (*fault)
		return -EPROTONOSUPPORT;
	*fault = vgpu_migration_malformed(header, target);
	if (*fault)
		return -EINVAL;
	if (le64_to_cpu(header->memory_bytes) != target->memory_bytes) {
		*fault = "memory_bytes";
		return -ERANGE;
	}
	*fault = vgpu_migration_other_engine(header, target);
	if (*fault)
		return -EOPNOTSUPP;
	vgpu_migration_take_apart(header, state);
	*fault = vgpu_migration_impossible(header, state);
	return *fault ? -EINVAL : 0;
}
