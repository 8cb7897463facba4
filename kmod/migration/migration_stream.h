/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The stream that carries a stopped slice to another host:
 *
 *   struct vgpu_migration_header   everything but device memory, with its checksum
 *   device memory                  whole
 *   struct vgpu_migration_trailer  its checksum
 *
 * Settings of the operator (tenant, weight, cap) and counters of the host are not in
 * the stream. Plain C: user space builds it, too.
 */
#ifndef VGPU_MIGRATION_STREAM_H
#define VGPU_MIGRATION_STREAM_H

#include <linux/types.h>

#include "function/ring_setup.h"

#define VGPU_MIGRATION_MAGIC		0x3147494d55504756ULL	/* "VGPUMIG1" */
#define VGPU_MIGRATION_VERSION		1
#define VGPU_MIGRATION_CONFIG_BYTES	256
#define VGPU_MIGRATION_MSIX_BYTES	(16 * VGPU_VECTORS)
#define VGPU_MIGRATION_ENGINE_BYTES	16
#define VGPU_MIGRATION_ERROR_MAX	VGPU_ERROR_ENGINE

/* struct vgpu_migration_header.flags */
#define VGPU_MIGRATION_ENABLED		(1u << 0)	/* the rings are in use */
#define VGPU_MIGRATION_REPORTED		(1u << 1)	/* the guest was notified of the error */
#define VGPU_MIGRATION_FLAGS		0x3u

/**
 * struct vgpu_migration_header - the beginning of the stream, little endian
 * @magic: VGPU_MIGRATION_MAGIC
 * @version: VGPU_MIGRATION_VERSION; no other version is accepted
 * @header_bytes: sizeof(struct vgpu_migration_header)
 * @memory_bytes: device memory that follows
 * @abi: VGPU_ABI of the device that was saved
 * @flags: VGPU_MIGRATION_*
 * @ring: ring registers
 * @completion: see @ring
 * @shadow: see @ring
 * @run_ns: VGPU_REG_RUN_NS
 * @entries: see @ring
 * @run_ns_hi: high half, latched by reading the low half
 * @tail: tail as last written to the doorbell
 * @completed: items answered; later items are fetched again
 * @error: enum vgpu_error
 * @error_index: item at fault
 * @config: configuration space
 * @msix: MSI-X table
 * @engine: name of the engine, filled up with zeros
 * @operations: VGPU_REG_OPS, on which the guest relies
 * @checksum: CRC-32C of all bytes before
 */
struct vgpu_migration_header {
	__le64 magic;
	__le32 version;
	__le32 header_bytes;
	__le64 memory_bytes;
	__le32 abi;
	__le32 flags;
	__le64 ring;
	__le64 completion;
	__le64 shadow;
	__le64 run_ns;
	__le32 entries;
	__le32 run_ns_hi;
	__le32 tail;
	__le32 completed;
	__le32 error;
	__le32 error_index;
	__u8 config[VGPU_MIGRATION_CONFIG_BYTES];
	__u8 msix[VGPU_MIGRATION_MSIX_BYTES];
	char engine[VGPU_MIGRATION_ENGINE_BYTES];
	__le32 operations;
	__le32 checksum;
};

/**
 * struct vgpu_migration_trailer - the end of the stream, little endian
 * @checksum: CRC-32C of device memory
 */
struct vgpu_migration_trailer {
	__le32 checksum;
};

/**
 * struct vgpu_migration_state - a decoded header, in host byte order
 * @setup: ring registers
 * @run_ns: like the following fields, see struct vgpu_migration_header
 * @run_ns_hi: .
 * @tail: .
 * @completed: .
 * @error: .
 * @error_index: .
 * @enabled: the rings are in use
 * @reported: the guest was notified of the error
 */
struct vgpu_migration_state {
	struct vgpu_ring_setup setup;
	__u64 run_ns;
	__u32 run_ns_hi;
	__u32 tail;
	__u32 completed;
	__u32 error;
	__u32 error_index;
	bool enabled;
	bool reported;
};

/**
 * struct vgpu_migration_target - the device that is saved or restored
 * @memory_bytes: size of its device memory
 * @engine: name of its engine, filled up with zeros
 * @operations: operations that its engine executes
 * @config: configuration space after power on
 * @config_writable: bits of it that a guest can change
 * @msix: MSI-X table after power on
 * @msix_writable: bits of it that a guest can change
 */
struct vgpu_migration_target {
	__u64 memory_bytes;
	char engine[VGPU_MIGRATION_ENGINE_BYTES];
	__u32 operations;
	__u8 config[VGPU_MIGRATION_CONFIG_BYTES];
	__u8 config_writable[VGPU_MIGRATION_CONFIG_BYTES];
	__u8 msix[VGPU_MIGRATION_MSIX_BYTES];
	__u8 msix_writable[VGPU_MIGRATION_MSIX_BYTES];
};

__u32 vgpu_migration_checksum(const struct vgpu_migration_header *header);
void vgpu_migration_format(struct vgpu_migration_header *header,
			   const struct vgpu_migration_state *state,
			   const struct vgpu_migration_target *target);
int vgpu_migration_parse(const struct vgpu_migration_header *header,
			 const struct vgpu_migration_target *target,
			 struct vgpu_migration_state *state, const char **fault);

#endif /* VGPU_MIGRATION_STREAM_H */
