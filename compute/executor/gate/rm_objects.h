/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a child has made at NVIDIA's resource manager (RM), as far as the gate must know it:
 * clients, devices, subdevices, channel groups and channels.
 *
 * An object is forgotten when the child frees it by a call that the relay makes, and not when
 * a file is closed: whether that was the last descriptor of the file, nobody knows.  A client
 * that was forgotten too early would have channels that nobody stops.
 *
 * The child's relay writes the table, from calls that it made itself.  The supervisor
 * reads it while the child is stopped, and then no call is under way.
 */
#ifndef VGPU_EXECUTOR_RM_OBJECTS_H
#define VGPU_EXECUTOR_RM_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

/* A context has some 30 objects; a native program may be several processes. */
#define RM_OBJECTS_MAX	4096u
#define RM_OBJECTS_CHILD_MAX	1024u
/*
 * Programs have two to four.  The driver takes a list of channels for each client, in a call that
 * takes half a millisecond, and whoever makes it keeps all others of the host waiting.
 */
#define RM_CLIENTS_MAX	8u
#define RM_CLIENTS_NATIVE_MAX	32u

enum rm_kind {
	RM_UNTRACKED,	/* nothing that the gate must know */
	RM_CLIENT,
	RM_DEVICE,
	RM_SUBDEVICE,
	RM_GROUP,
	RM_CHANNEL,
	RM_COMPUTE,	/* what lets a channel run kernels */
};

/**
 * struct rm_object - one of them; the client's handle is its own
 * @file: of a client: the child's descriptor on which it was made
 * @engine: of a group
 * @scheduled: of a group or channel: the child has had it scheduled, which it may once
 * @unpreemptible: of a channel that runs kernels: the driver may let one run to its end
 */
struct rm_object {
	uint32_t client;
	uint32_t handle;
	uint32_t parent;
	uint32_t kind;
	int32_t file;
	uint32_t engine;
	uint32_t scheduled;
	uint32_t unpreemptible;
};

/* @is_native: of a native program, which may have more than a child */
struct rm_objects {
	uint32_t count;
	uint32_t is_native;
	struct rm_object list[RM_OBJECTS_MAX];
};

/* NULL if there is none. */
struct rm_object *rm_find(struct rm_objects *objects, uint32_t client, uint32_t handle);
/* On which the driver is told about the channels of a device; NULL if the child has none. */
struct rm_object *rm_subdevice(struct rm_objects *objects, uint32_t client, uint32_t device);
bool rm_owns(struct rm_objects *objects, uint32_t client);
/* Whether there is no place for another of a kind. */
bool rm_is_full(const struct rm_objects *objects, enum rm_kind kind);
/* Only if it is not full.  An object that had the handle is forgotten. */
void rm_add(struct rm_objects *objects, const struct rm_object *object);
/* Is it a group whose timeslice counts?  Copy engines have groups of their own, and take turns of their own. */
bool rm_runs_kernels(const struct rm_object *object);
/* With all below it. */
void rm_forget(struct rm_objects *objects, uint32_t client, uint32_t handle);

#endif /* VGPU_EXECUTOR_RM_OBJECTS_H */
