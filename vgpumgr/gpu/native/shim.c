// SPDX-License-Identifier: Apache-2.0
/* ioctl() for the tenant's process: watches the calls to the driver, and changes three of them. */
#define _GNU_SOURCE
#include "shim.h"

#include "rm_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One call to the driver, without its envelope. */
struct call {
	int fd;
	unsigned long request;
	void *argument;
	bool wrapped;
	uint32_t escape;
	uint32_t size;
	uint64_t address;
};

int driver_ioctl(int fd, unsigned long request, void *argument)
{
	static int (*_Atomic next)(int, unsigned long, ...);

	if (next == NULL)
		next = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
	if (next == NULL)
		return (int)syscall(SYS_ioctl, fd, request, argument);
	return next(fd, request, argument);
}

static int pass(const struct call *call)
{
	return driver_ioctl(call->fd, call->request, call->argument);
}

int driver_set_timeslice(int fd, uint32_t client, uint32_t handle, uint32_t timeslice_us, uint32_t *status)
{
	uint64_t params = timeslice_us;
	struct rm_control control = {
		.client = client,
		.object = handle,
		.cmd = RM_CMD_SET_TIMESLICE,
		.params = (uintptr_t)&params,
		.params_size = sizeof(params),
	};
	int result = driver_ioctl(fd, _IOWR(RM_MAGIC, RM_ESC_CONTROL, struct rm_control), &control);

	*status = result == 0 ? control.status : UINT32_MAX;
	record("applied", "\"client\":%u,\"group\":%u,\"requested_us\":%u,\"result\":%d,\"status\":%u", client,
	       handle, timeslice_us, result, *status);
	return result;
}

/*
 * Passes on a changed control call in place of the tenant's call, and returns the driver's status to
 * the tenant.
 */
static int pass_changed(const struct call *call, struct rm_control *control)
{
	struct rm_xfer envelope = { .cmd = call->escape, .size = call->size, .pointer = (uintptr_t)control };
	int result = driver_ioctl(call->fd, call->request, call->wrapped ? (void *)&envelope : control);

	if (result == 0 && !memory_write(call->address + offsetof(struct rm_control, status), &control->status,
					 sizeof(control->status))) {
		errno = EFAULT;
		return -1;
	}
	return result;
}

static int on_set_timeslice(const struct call *call, struct rm_control *control)
{
	uint32_t timeslice_us = settings_timeslice_us();
	uint64_t asked, ours = timeslice_us;
	int result;

	/* If the driver would refuse the call, pass it on unchanged. */
	if (timeslice_us == 0 || control->params_size != sizeof(asked) ||
	    !groups_has(control->client, control->object) ||
	    !memory_read(&asked, control->params, sizeof(asked)))
		return pass(call);
	control->params = (uintptr_t)&ours;
	result = pass_changed(call, control);
	record("rewritten",
	       "\"client\":%u,\"group\":%u,\"asked_us\":%llu,\"requested_us\":%u,\"result\":%d,\"status\":%u",
	       control->client, control->object, (unsigned long long)asked, timeslice_us, result,
	       control->status);
	return result;
}

static int refuse(const struct call *call)
{
	uint32_t refusal = RM_ERR_INSUFFICIENT_PERMISSIONS;

	if (memory_write(call->address + offsetof(struct rm_control, status), &refusal, sizeof(refusal)))
		return 0;
	errno = EFAULT;
	return -1;
}

/*
 * Parameters that set a channel's preemption mode. Two control calls do that; the parameters of one
 * of these have two sizes.
 */
union preemption_params {
	struct rm_preemption_mode mode;
	struct rm_preemption_bind_8 bind_8;
	struct rm_preemption_bind_9 bind_9;
};

/*
 * Finds the channel and its compute mode in the parameters; returns false for a size that no known
 * driver has.
 */
static bool preemption_layout(const struct rm_control *control, union preemption_params *params, uint32_t **channel,
			      uint32_t **compute)
{
	if (control->cmd == RM_CMD_SET_PREEMPTION_MODE && control->params_size == sizeof(params->mode)) {
		*channel = &params->mode.channel;
		*compute = &params->mode.compute;
	} else if (control->cmd == RM_CMD_PREEMPTION_BIND && control->params_size == sizeof(params->bind_8)) {
		*channel = &params->bind_8.channel;
		*compute = &params->bind_8.compute;
	} else if (control->cmd == RM_CMD_PREEMPTION_BIND && control->params_size == sizeof(params->bind_9)) {
		*channel = &params->bind_9.channel;
		*compute = &params->bind_9.compute;
	} else {
		return false;
	}
	return true;
}

static int on_set_preemption(const struct call *call, struct rm_control *control)
{
	enum preemption preemption = settings_preemption();
	union preemption_params params;
	uint32_t flags, channel, *channel_at, *compute;
	int result;

	if (!preemption_layout(control, &params, &channel_at, &compute)) {
		bool refuses = preemption == PREEMPTION_REFUSE_WFI;

		/* The requested mode is unknown, so treat it like WFI. */
		record(refuses ? "refused" : "passed", "\"reason\":\"preemption parameters of %u bytes\"",
		       control->params_size);
		return refuses ? refuse(call) : pass(call);
	}
	if (!memory_read(&params, control->params, control->params_size))
		return pass(call);
	/* All layouts begin with the flags. */
	flags = params.mode.flags;
	channel = *channel_at;
	record("preemption_asked",
	       "\"fd\":%d,\"client\":%u,\"subdevice\":%u,\"channel\":%u,\"flags\":%u,\"compute\":%u", call->fd,
	       control->client, control->object, channel, flags, *compute);
	if (preemption == PREEMPTION_PASS || !(flags & RM_PREEMPTION_SETS_COMPUTE) || *compute != RM_COMPUTE_WFI)
		return pass(call);
	if (preemption == PREEMPTION_REFUSE_WFI) {
		record("refused", "\"client\":%u,\"channel\":%u", control->client, channel);
		return refuse(call);
	}
	*compute = RM_COMPUTE_CILP;
	control->params = (uintptr_t)&params;
	result = pass_changed(call, control);
	record("made_preemptible", "\"client\":%u,\"channel\":%u,\"result\":%d,\"status\":%u", control->client,
	       channel, result, control->status);
	return result;
}

static int on_control(const struct call *call)
{
	struct rm_control control;

	if (call->size != sizeof(control) || !memory_read(&control, call->address, sizeof(control)))
		return pass(call);
	switch (control.cmd) {
	case RM_CMD_SET_TIMESLICE:
		return on_set_timeslice(call, &control);
	case RM_CMD_SET_PREEMPTION_MODE:
	case RM_CMD_PREEMPTION_BIND:
		return on_set_preemption(call, &control);
	default:
		return pass(call);
	}
}

/* Reads an allocation of either layout into the long layout. */
static bool read_alloc(const struct call *call, struct rm_alloc_long *alloc)
{
	struct rm_alloc_short brief;

	if (call->size == sizeof(*alloc))
		return memory_read(alloc, call->address, sizeof(*alloc));
	if (call->size != sizeof(brief) || !memory_read(&brief, call->address, sizeof(brief)))
		return false;
	*alloc = (struct rm_alloc_long){
		.client = brief.client,
		.parent = brief.parent,
		.object = brief.object,
		.class_id = brief.class_id,
		.params = brief.params,
		.params_size = brief.params_size,
		.status = brief.status,
	};
	return true;
}

static void new_group(const struct call *call, const struct rm_alloc_long *alloc, uint32_t engine_type)
{
	struct group group = {
		.fd = call->fd,
		.client = alloc->client,
		.parent = alloc->parent,
		.handle = alloc->object,
	};
	bool runs_kernels = engine_type >= RM_ENGINE_GR0 && engine_type <= RM_ENGINE_GR_LAST;
	struct stat identity;
	uint32_t status;

	record("group", "\"fd\":%d,\"client\":%u,\"group\":%u,\"engine_type\":%u", call->fd, alloc->client,
	       alloc->object, engine_type);
	if (!runs_kernels || fstat(call->fd, &identity) < 0)
		return;
	group.device = identity.st_dev;
	group.inode = identity.st_ino;
	if (!groups_add(&group)) {
		record("passed", "\"reason\":\"more than %d groups\"", GROUPS_MAX);
		return;
	}
	if (settings_timeslice_us() != 0)
		driver_set_timeslice(call->fd, alloc->client, alloc->object, settings_timeslice_us(), &status);
	control_start();
}

static int on_alloc(const struct call *call)
{
	struct rm_alloc_long before, after;
	struct rm_group_params params = { 0 };
	int result, saved;

	if (!read_alloc(call, &before))
		return pass(call);
	/*
	 * Read the parameters before the call, because the driver may change them. A size of 0
	 * means the size of the class.
	 */
	if (before.class_id == RM_CLASS_GROUP && (before.params_size == 0 || before.params_size == sizeof(params)))
		memory_read(&params, before.params, sizeof(params));
	result = pass(call);
	saved = errno;
	if (result == 0 && read_alloc(call, &after) && after.status == RM_OK) {
		if (before.class_id == RM_CLASS_GROUP)
			new_group(call, &after, params.engine_type);
		else if (before.class_id == RM_CLASS_SUBDEVICE)
			record("subdevice", "\"fd\":%d,\"client\":%u,\"subdevice\":%u", call->fd, after.client,
			       after.object);
		else if ((before.class_id & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE &&
			 groups_has(after.client, after.parent))
			record("channel", "\"fd\":%d,\"client\":%u,\"group\":%u,\"channel\":%u", call->fd,
			       after.client, after.parent, after.object);
	}
	errno = saved;
	return result;
}

static int on_free(const struct call *call)
{
	struct rm_free before, after;
	int result;

	if (call->size != sizeof(before) || !memory_read(&before, call->address, sizeof(before)))
		return pass(call);
	result = pass(call);
	if (result == 0 && memory_read(&after, call->address, sizeof(after)) && after.status == RM_OK)
		groups_drop(before.client, before.object);
	return result;
}

static int on_check_version(const struct call *call)
{
	struct rm_version version;
	int result = pass(call);

	if (result == 0 && call->size == sizeof(version) && memory_read(&version, call->address, sizeof(version)))
		driver_learn(version.text, sizeof(version.text));
	return result;
}

static int on_call(const struct call *call)
{
	if (call->escape == RM_ESC_CHECK_VERSION)
		return on_check_version(call);
	if (call->escape != RM_ESC_ALLOC && call->escape != RM_ESC_CONTROL && call->escape != RM_ESC_FREE)
		return pass(call);
	if (!driver_is_known())
		return pass(call);
	if (call->escape == RM_ESC_ALLOC)
		return on_alloc(call);
	return call->escape == RM_ESC_CONTROL ? on_control(call) : on_free(call);
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	struct call call = { .fd = fd, .request = request };
	struct rm_xfer envelope;
	va_list arguments;

	va_start(arguments, request);
	call.argument = va_arg(arguments, void *);
	va_end(arguments);

	if (_IOC_TYPE(request) != RM_MAGIC || _IOC_DIR(request) != (_IOC_READ | _IOC_WRITE))
		return pass(&call);
	call.escape = _IOC_NR(request);
	call.size = _IOC_SIZE(request);
	call.address = (uintptr_t)call.argument;
	if (call.escape == RM_ESC_XFER) {
		if (call.size != sizeof(envelope) || !memory_read(&envelope, call.address, sizeof(envelope)))
			return pass(&call);
		call.wrapped = true;
		call.escape = envelope.cmd;
		call.size = envelope.size;
		call.address = envelope.pointer;
	}
	return on_call(&call);
}
