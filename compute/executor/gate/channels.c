// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/channels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "rm_abi.h"

#define ROOT_LOCK	"/run/vgpumgr-gate.lock"
/*
 * Timeslices take effect only while another slice uses the GPU: a group that is alone runs
 * regardless of its timeslice.
 */
#define CLOSED_US	1u
#define OPEN_US	20000u

int vgpu_channels_lock_open(const char *path)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char own[4096];

	if (!path && !geteuid())
		path = ROOT_LOCK;
	if (!path) {
		if (!runtime || snprintf(own, sizeof(own), "%s/vgpumgr-gate.lock", runtime) >= (int)sizeof(own)) {
			errno = ENOENT;
			return -1;
		}
		path = own;
	}
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

bool vgpu_channels_lock(int lock)
{
	return !flock(lock, LOCK_EX | LOCK_NB);
}

void vgpu_channels_unlock(int lock)
{
	flock(lock, LOCK_UN);
}

static bool fail(char *reason, const char *what, uint32_t number)
{
	snprintf(reason, VGPU_CHANNELS_REASON, "%s 0x%x", what, number);
	return false;
}

#define ALL_LISTS	UINT32_MAX

/**
 * struct turn - one pass over all groups of a child, which closes or opens them
 * @limit: maximum number of channel lists to pass to the driver
 * @taken: out: number of lists that the driver accepted
 * @refused: out: the driver does not support such calls at all
 */
struct turn {
	struct rm_objects *objects;
	int process;
	bool close;
	char *reason;
	uint64_t open_us;
	uint32_t limit;
	uint32_t taken;
	bool refused;
};

/* Makes a control call on one of the child's files.  The driver checks the file, not the caller. */
static bool control(struct turn *turn, uint32_t client, uint32_t object, uint32_t command,
		    void *parameters, uint32_t bytes)
{
	struct rm_control call = {
		.client = client, .object = object, .cmd = command,
		.params = (uintptr_t)parameters, .params_size = bytes, .status = UINT32_MAX,
	};
	const struct rm_object *owner = rm_find(turn->objects, client, client);
	int file = owner ? pidfd_getfd(turn->process, owner->file, 0) : -1, result, error;

	if (file < 0)
		return fail(turn->reason, "no file of client", client);
	result = ioctl(file, _IOWR(RM_MAGIC, RM_ESC_CONTROL, struct rm_control), &call);
	error = errno;
	close(file);
	if (result < 0)
		return fail(turn->reason, "driver: errno", (uint32_t)error);
	if (call.status == RM_OK)
		return true;
	turn->refused = call.status == RM_ERR_NOT_SUPPORTED ||
			call.status == RM_ERR_INSUFFICIENT_PERMISSIONS;
	return fail(turn->reason, "driver: status", call.status);
}

static bool flush(struct turn *turn, const struct rm_object *subdevice, struct rm_disable_channels *list)
{
	if (list->count && turn->taken < turn->limit) {
		if (!control(turn, subdevice->client, subdevice->handle, RM_CMD_DISABLE_CHANNELS, list,
			     sizeof(*list)))
			return false;
		turn->taken++;
	}
	list->count = 0;
	return true;
}

static bool list_channels(struct turn *turn, const struct rm_object *subdevice,
			  const struct rm_object *group, struct rm_disable_channels *list)
{
	for (uint32_t i = 0; i < turn->objects->count; i++) {
		const struct rm_object *channel = &turn->objects->list[i];

		if (channel->kind != RM_CHANNEL || channel->client != group->client ||
		    channel->parent != group->handle)
			continue;
		if (list->count == RM_DISABLE_CHANNELS_MAX && !flush(turn, subdevice, list))
			return false;
		list->clients[list->count] = channel->client;
		list->channels[list->count++] = channel->handle;
	}
	return true;
}

/*
 * Disables or enables all groups of a device.  The driver accepts a list only on a subdevice of the
 * same client.
 */
static bool disable_device(struct turn *turn, const struct rm_object *device)
{
	struct rm_disable_channels list = { .disable = turn->close };
	const struct rm_object *subdevice = rm_subdevice(turn->objects, device->client, device->handle);

	for (uint32_t i = 0; i < turn->objects->count; i++) {
		const struct rm_object *group = &turn->objects->list[i];

		if (group->kind != RM_GROUP || group->client != device->client ||
		    group->parent != device->handle)
			continue;
		if (!subdevice)
			return fail(turn->reason, "no subdevice of client", device->client);
		if (!list_channels(turn, subdevice, group, &list))
			return false;
	}
	return flush(turn, subdevice, &list);
}

static bool disable(struct turn *turn)
{
	for (uint32_t i = 0; i < turn->objects->count; i++)
		if (turn->objects->list[i].kind == RM_DEVICE &&
		    !disable_device(turn, &turn->objects->list[i]))
			return false;
	return true;
}

/*
 * Sets the timeslices only of groups that run kernels.  Nobody has measured what timeslices do to a
 * copy engine.
 */
static bool set_timeslices(struct turn *turn)
{
	for (uint32_t i = 0; i < turn->objects->count; i++) {
		const struct rm_object *group = &turn->objects->list[i];
		uint64_t timeslice_us = turn->close ? CLOSED_US : turn->open_us ? turn->open_us : OPEN_US;

		if (rm_runs_kernels(group) && !control(turn, group->client, group->handle, RM_CMD_SET_TIMESLICE,
						    &timeslice_us, sizeof(timeslice_us)))
			return false;
	}
	return true;
}

/*
 * The driver may have accepted some lists before it refused one.  The channels in those lists are
 * enabled again here, because no later call would enable them.  By then the short timeslices are in
 * force, and the child is stopped.
 */
static bool stand_in(const struct turn *refused)
{
	struct turn closing = *refused;
	struct turn undoing = *refused;

	undoing.close = false;
	undoing.limit = refused->taken;
	undoing.taken = 0;
	return set_timeslices(&closing) && disable(&undoing);
}

static bool has_unpreemptible(const struct rm_objects *objects)
{
	for (uint32_t i = 0; i < objects->count; i++)
		if (objects->list[i].unpreemptible)
			return true;
	return false;
}

bool vgpu_channels_set(struct vgpu_channels *channels, int process, bool close, char *reason)
{
	/* Work on a copy: a compromised relay could write to the table at any time. */
	static struct rm_objects objects;
	struct turn turn = {
		.objects = &objects, .process = process, .close = close, .reason = reason, .limit = ALL_LISTS,
		.open_us = channels->open_us,
	};
	bool done;

	memcpy(&objects, channels->objects, sizeof(objects));
	if (close)
		channels->closed = true;
	if (objects.count > RM_OBJECTS_MAX)
		return fail(reason, "objects", objects.count);
	channels->unpreemptible = has_unpreemptible(&objects);
	if (channels->by_timeslice) {
		done = set_timeslices(&turn);
	} else {
		done = disable(&turn);
		if (!done && turn.refused && close) {
			done = stand_in(&turn);
			channels->by_timeslice = done;
		}
	}
	if (done)
		channels->closed = close;
	return done;
}

void vgpu_channels_timeslice(const struct vgpu_channels *channels, int process)
{
	static struct rm_objects objects;
	char reason[VGPU_CHANNELS_REASON];
	struct turn turn = {
		.objects = &objects, .process = process, .reason = reason, .open_us = channels->open_us,
	};

	memcpy(&objects, channels->objects, sizeof(objects));
	if (objects.count <= RM_OBJECTS_MAX && !(channels->by_timeslice && channels->closed))
		set_timeslices(&turn);
}
