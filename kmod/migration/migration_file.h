/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The file of one save or restore. Device and file hold references to each other until
 * the device leaves the migration state of the file, by request of the VMM, a reset,
 * revocation or close. From then on the file only returns errors. The file's lock
 * serializes readers and writers and may be held over a page fault; state_lock, which is
 * taken inside it, never is.
 */
#ifndef VGPU_MIGRATION_FILE_H
#define VGPU_MIGRATION_FILE_H

#include "migration/migration_stream.h"
#include "vgpu.h"

#define VGPU_MIGRATION_PIECE_BYTES	(64U << 10)

/**
 * struct vgpu_migration_file - one save or restore
 * @device: the slice; the file holds a reference to it
 * @filp: the VMM's file; the device holds a reference to it while it points to this
 *	struct
 * @lock: one reader or writer at a time; outside state_lock
 * @position: bytes of the stream done; a writer changes it under both locks
 * @memory_checksum: checksum of device memory up to @position, not inverted; locked like
 *	@position
 * @header: header of the stream
 * @trailer: trailer of the stream
 * @target: the device to which a header must fit
 * @state: from a restored header
 * @parsed: @state is valid
 * @complete: device memory is valid, too
 * @piece: buffer for the transfer from or to the VMM
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
