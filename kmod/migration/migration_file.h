/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The file of one saving or restoring: device and file hold each other until the state in
 * which the file is of use ends, by the VMM's wish, a reset, revocation or close; then it
 * only returns errors. Its lock keeps readers and writers in order and may be held over a
 * page fault; state_lock, taken inside it, never is.
 */
#ifndef VGPU_MIGRATION_FILE_H
#define VGPU_MIGRATION_FILE_H

#include "migration/migration_stream.h"
#include "vgpu.h"

#define VGPU_MIGRATION_PIECE_BYTES	(64U << 10)

/**
 * struct vgpu_migration_file - one saving or restoring
 * @device: holds a reference
 * @filp: what the VMM has; the device holds a reference while it names this
 * @lock: one reader or writer at a time; outside state_lock
 * @position: bytes of the stream behind us; a writer changes it under both locks
 * @memory_checksum: of device memory up to @position, not inverted; as @position
 * @header: of the stream
 * @trailer: of the stream
 * @target: the device, as a header has to fit it
 * @state: from a restored header
 * @parsed: @state is valid
 * @complete: so is device memory
 * @piece: on its way from or to the VMM
 */
struct vgpu_migration_file {
	struct vgpu_device *device;
	struct file *filp;
	struct mutex lock;	/* readers and writers */
	u64 position;
	u32 memory_checksum;
	struct vgpu_migration_header header;
	struct vgpu_migration_trailer trailer;
	struct vgpu_migration_target target;
	struct vgpu_migration_state state;
	bool parsed;
	bool complete;
	u8 piece[VGPU_MIGRATION_PIECE_BYTES];
};

u64 vgpu_migration_bytes(const struct vgpu_device *device);

/* state_lock held */
struct file *vgpu_migration_open(struct vgpu_device *device, bool save);
void vgpu_migration_forget(struct vgpu_device *device);

#endif /* VGPU_MIGRATION_FILE_H */
