/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that a child has made in NVIDIA's resource manager (RM) and that the gate must know:
 * clients, devices, subdevices, channel groups and channels.
 *
 * An object is removed when the child frees it by a call that the relay makes.  Closing a file does
 * not remove objects, because nobody knows whether that was the last descriptor of the file.  If a
 * client were removed too early, the gate would not stop the client's channels.
 *
 * The child's relay writes the table, from calls that it made itself.  The supervisor reads the
 * table while the child is stopped, when no call is in progress.
 */
#ifndef VGPU_EXECUTOR_RM_OBJECTS_H
#define VGPU_EXECUTOR_RM_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

/* A context has about 30 objects.  A native program may consist of several processes. */
#define RM_OBJECTS_MAX	4096u
#define RM_OBJECTS_CHILD_MAX	1024u
/*
 * Programs have two to four clients.  The driver takes a list of channels for each client, in a
 * call that takes half a millisecond, and all other callers on the host wait meanwhile.
 */
#define RM_CLIENTS_MAX	8u
#define RM_CLIENTS_NATIVE_MAX	32u

enum rm_kind {
	RM_UNTRACKED,	/* not relevant to the gate */
	RM_CLIENT,
	RM_DEVICE,
	RM_SUBDEVICE,
	RM_GROUP,
	RM_CHANNEL,
	RM_COMPUTE,	/* enables a channel to run kernels */
};

/**
 * struct rm_object - one object; a client's @client and @handle are equal
 * @file: of a client: the child's descriptor on which it was made
 * @engine: of a group
 * @scheduled: of a group or channel: the child has enabled its scheduling, which is permitted once
 * @unpreemptible: of a channel that runs kernels: the driver may run a kernel to its end
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

/* @is_native: the objects belong to a native program, which may have more of them than a child */
struct rm_objects {
	uint32_t count;
	uint32_t is_native;
	struct rm_object list[RM_OBJECTS_MAX];
};

/* Return: NULL if there is no such object. */
struct rm_object *rm_find(struct rm_objects *objects, uint32_t client, uint32_t handle);
/* Return: the subdevice to use in calls about the channels of a device; NULL if the child has none. */
struct rm_object *rm_subdevice(struct rm_objects *objects, uint32_t client, uint32_t device);
bool rm_owns(struct rm_objects *objects, uint32_t client);
/* Is there no room for another object of this kind? */
bool rm_is_full(const struct rm_objects *objects, enum rm_kind kind);
/* Call it only if rm_is_full() is false.  An earlier object with the same handle is removed. */
void rm_add(struct rm_objects *objects, const struct rm_object *object);
/*
 * Is this a group that runs kernels, so that its timeslice matters? Groups of copy engines are
 * scheduled separately.
 */
bool rm_runs_kernels(const struct rm_object *object);
/* Removes an object and all its descendants. */
void rm_forget(struct rm_objects *objects, uint32_t client, uint32_t handle);

#endif /* VGPU_EXECUTOR_RM_OBJECTS_H */
