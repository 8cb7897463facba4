// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/relay_call.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/fence/books.h"
#include "executor/gate/rm_calls.h"
#include "executor/log.h"
#include "executor/notice.h"

/* Size of the access rights that an allocation requests: a mask of one word. */
#define RIGHTS_BYTES	4u

bool relay_take(const struct relay_state *state, void *to, uint64_t from, uint64_t bytes)
{
	return !bytes || pread(state->memory, to, bytes, (off_t)from) == (ssize_t)bytes;
}

bool relay_give(const struct relay_state *state, uint64_t to, const void *from, uint64_t bytes)
{
	return !bytes || pwrite(state->memory, from, bytes, (off_t)to) == (ssize_t)bytes;
}

int relay_make(int file, uint32_t escape, uint32_t bytes, void *structure)
{
	if (ioctl(file, _IOC(_IOC_READ | _IOC_WRITE, RM_MAGIC, escape, bytes), structure) < 0)
		return errno;
	return 0;
}

int relay_client_file(const struct relay_state *state, const struct rm_object *client)
{
	if (state->books)
		return fcntl(client->file, F_DUPFD_CLOEXEC, 0);
	return pidfd_getfd(state->process, client->file, 0);
}

void relay_refuse(struct relay_call *call, const char *why, uint32_t detail)
{
	call->refused = why;
	call->detail = detail;
}

void relay_say_refused(const struct relay_state *state, struct vgpu_notice *notice,
		       const struct relay_call *call, uint64_t now_ns)
{
	const char *who = state->books ? "native" : "child";
	uint64_t left_out = vgpu_notice_take(notice, now_ns);

	if (left_out)
		vgpu_log(LOG_NOTICE, "%s=%llu event=lines.left_out count=%llu", who,
			 (unsigned long long)state->number, (unsigned long long)left_out);
	if (!vgpu_notice_may(notice, now_ns))
		return;
	vgpu_log(LOG_NOTICE, "%s=%llu event=call.refused what=%s number=0x%x driver=%s", who,
		 (unsigned long long)state->number, call->refused, call->detail,
		 state->known ? "known" : state->version[0] ? "unknown" : "unasked");
}

static int check_version(struct relay_state *state, const struct relay_call *call, int file)
{
	struct rm_version version;
	int error;

	if (!relay_take(state, &version, call->address, sizeof(version)))
		return EFAULT;
	error = relay_make(file, call->escape, sizeof(version), &version);
	memcpy(state->version, version.text, sizeof(state->version));
	state->version[sizeof(state->version) - 1] = '\0';
	state->known = !error && rm_is_known(state->version, sizeof(state->version));
	if (!relay_give(state, call->address, &version, sizeof(version)))
		return EFAULT;
	return error;
}

static void widen(const void *structure, uint32_t bytes, struct rm_alloc_long *alloc)
{
	const struct rm_alloc_short *brief = structure;

	if (bytes == sizeof(*alloc)) {
		memcpy(alloc, structure, sizeof(*alloc));
		return;
	}
	*alloc = (struct rm_alloc_long){
		.client = brief->client, .parent = brief->parent, .object = brief->object,
		.class_id = brief->class_id, .params = brief->params, .params_size = brief->params_size,
	};
}

/* Writes the child's structure back in the length that the child used. */
static bool give_alloc(const struct relay_state *state, const struct relay_call *call,
		       const struct rm_alloc_long *alloc)
{
	struct rm_alloc_short brief = {
		.client = alloc->client, .parent = alloc->parent, .object = alloc->object,
		.class_id = alloc->class_id, .params = alloc->params, .params_size = alloc->params_size,
		.status = alloc->status,
	};

	if (call->bytes == sizeof(brief))
		return relay_give(state, call->address, &brief, sizeof(brief));
	return relay_give(state, call->address, alloc, sizeof(*alloc));
}

static void note_made(struct relay_state *state, const struct relay_call *call, int file,
		      const struct rm_alloc_long *alloc, struct rm_object *made)
{
	if (made->kind == RM_UNTRACKED)
		return;
	made->handle = alloc->object;
	if (made->kind == RM_CLIENT) {
		made->client = alloc->object;
		made->parent = 0;
		made->file = state->books ? fence_keep_file(state->books, made->client, file) : call->file;
	}
	rm_add(state->objects, made);
}

/* Return: the bytes of GPU memory that an allocation requests. */
static uint64_t asked_bytes(const struct rm_alloc_long *alloc, const void *parameters)
{
	const struct rm_memory_params *memory = parameters;

	/* The rest of @parameters is zero if the caller gave less than the whole structure. */
	if (alloc->class_id != RM_CLASS_MEMORY ||
	    memory->flags & RM_MEMORY_FLAG_VIRTUAL ||
	    RM_MEMORY_LOCATION(memory->attributes) == RM_MEMORY_OF_HOST)
		return 0;
	return memory->size;
}

/*
 * A child may fail to request preemptible kernels, so the relay requests them before the first
 * kernel.  If the driver refuses, the child gets no error; @unpreemptible records it, and the gate
 * reports it.
 */
static void make_preemptible(struct relay_state *state, int file, uint32_t client, uint32_t handle)
{
	struct rm_objects *objects = state->objects;
	struct rm_object *channel = rm_find(objects, client, handle);
	const struct rm_object *group = channel ? rm_find(objects, client, channel->parent) : NULL;
	const struct rm_object *subdevice = group ? rm_subdevice(objects, client, group->parent) : NULL;
	struct rm_preemption_mode mode = {
		.flags = RM_PREEMPTION_SETS_COMPUTE, .channel = handle, .compute = RM_COMPUTE_CILP,
	};
	struct rm_control control = {
		.client = client, .object = subdevice ? subdevice->handle : 0,
		.cmd = RM_CMD_SET_PREEMPTION_MODE, .params = (uintptr_t)&mode,
		.params_size = sizeof(mode), .status = UINT32_MAX,
	};

	if (channel)
		channel->unpreemptible = !subdevice || relay_make(file, RM_ESC_CONTROL, sizeof(control), &control) ||
					 control.status != RM_OK;
}

/*
 * The driver may have changed the parameters, which are copied back.  The pointers stay those of
 * the child.
 */
static int make_alloc(struct relay_state *state, struct relay_call *call, int file,
		      struct rm_alloc_long *alloc, void *parameters, uint32_t bytes, void *rights)
{
	uint64_t parameters_at = alloc->params, rights_at = alloc->rights;
	uint64_t memory = asked_bytes(alloc, parameters);
	struct rm_object made;
	bool enters;
	int error = 0;

	alloc->status = rm_check_alloc(state->objects, alloc, parameters, bytes, &made);
	if (alloc->status == RM_ERR_INSUFFICIENT_RESOURCES && state->books) {
		fence_reap(state->books, false);
		alloc->status = rm_check_alloc(state->objects, alloc, parameters, bytes, &made);
	}
	enters = !alloc->status && made.kind != RM_UNTRACKED;
	if (enters && !fence_enter(state->books))
		return RELAY_HELD;
	if (!alloc->status && !fence_take_memory(state->books, memory))
		alloc->status = RM_ERR_NO_MEMORY;
	if (alloc->status) {
		relay_refuse(call, alloc->status == RM_ERR_NO_MEMORY ? "memory" : "allocation", alloc->class_id);
	} else {
		alloc->params = parameters_at ? (uintptr_t)parameters : 0;
		alloc->rights = rights_at ? (uintptr_t)rights : 0;
		/* The short form has no pointer to access rights; the driver treats NULL as none. */
		error = relay_make(file, RM_ESC_ALLOC, sizeof(*alloc), alloc);
		alloc->params = parameters_at;
		alloc->rights = rights_at;
		if (error || alloc->status != RM_OK) {
			fence_give_memory(state->books, memory);
		} else {
			note_made(state, call, file, alloc, &made);
			fence_note_memory(state->books, alloc->client, alloc->parent, alloc->object, memory);
			if (rm_is_compute(alloc->class_id))
				make_preemptible(state, file, alloc->client, alloc->parent);
			if (!relay_give(state, parameters_at, parameters, bytes))
				error = EFAULT;
		}
	}
	if (enters)
		fence_leave(state->books);
	return give_alloc(state, call, alloc) ? error : EFAULT;
}

static int perform_alloc(struct relay_state *state, struct relay_call *call, int file)
{
	_Alignas(8) char structure[sizeof(struct rm_alloc_long)], parameters[RM_CLASS_BYTES_MAX] = { 0 };
	char rights[RIGHTS_BYTES];
	const struct rm_class *class;
	struct rm_alloc_long alloc;
	uint32_t bytes = 0;

	if (!relay_take(state, structure, call->address, call->bytes))
		return EFAULT;
	widen(structure, call->bytes, &alloc);
	if (!state->known) {
		relay_refuse(call, "driver", 0);
		alloc.status = RM_ERR_NOT_SUPPORTED;
		return give_alloc(state, call, &alloc) ? 0 : EFAULT;
	}
	class = rm_class_find(alloc.class_id);
	if (alloc.params && class)
		bytes = alloc.params_size ? alloc.params_size : class->bytes;
	if (bytes > sizeof(parameters)) {
		relay_refuse(call, "parameters", bytes);
		alloc.status = RM_ERR_INVALID_PARAM_STRUCT;
		return give_alloc(state, call, &alloc) ? 0 : EFAULT;
	}
	if (!relay_take(state, parameters, alloc.params, bytes) ||
	    (alloc.rights && !relay_take(state, rights, alloc.rights, sizeof(rights))))
		return EFAULT;
	return make_alloc(state, call, file, &alloc, parameters, bytes, rights);
}

static int perform_free(struct relay_state *state, struct relay_call *call, int file)
{
	struct rm_free release;
	int error = 0;

	if (!relay_take(state, &release, call->address, sizeof(release)))
		return EFAULT;
	if (!rm_owns(state->objects, release.client)) {
		relay_refuse(call, "client", release.client);
		release.status = RM_ERR_INVALID_CLIENT;
	} else {
		bool enters = rm_find(state->objects, release.client, release.object);

		if (enters && !fence_enter(state->books))
			return RELAY_HELD;
		error = relay_make(file, RM_ESC_FREE, sizeof(release), &release);
		if (!error && release.status == RM_OK) {
			rm_forget(state->objects, release.client, release.object);
			fence_note_freed(state->books, release.client, release.object, enters);
		}
		if (enters)
			fence_leave(state->books);
	}
	return relay_give(state, call->address, &release, sizeof(release)) ? error : EFAULT;
}

static int perform_dup(struct relay_state *state, struct relay_call *call, int file)
{
	struct rm_dup dup;
	uint64_t memory;
	int error = 0;

	if (!relay_take(state, &dup, call->address, sizeof(dup)))
		return EFAULT;
	dup.status = rm_check_dup(state->objects, &dup);
	/* The second handle keeps the memory alive when the first one is freed, so it counts as well. */
	memory = fence_memory_of(state->books, dup.source_client, dup.source_object);
	if (!dup.status && !fence_take_memory(state->books, memory))
		dup.status = RM_ERR_NO_MEMORY;
	if (dup.status) {
		relay_refuse(call, "duplicate", dup.source_object);
	} else {
		error = relay_make(file, RM_ESC_DUP, sizeof(dup), &dup);
		if (error || dup.status != RM_OK)
			fence_give_memory(state->books, memory);
		else
			fence_note_memory(state->books, dup.client, dup.parent, dup.object, memory);
	}
	return relay_give(state, call->address, &dup, sizeof(dup)) ? error : EFAULT;
}

/* Copies of the lists that a control call's parameters point to. */
struct lists {
	uint64_t at[RM_POINTERS_MAX];
	uint32_t bytes;
	_Alignas(8) char copies[RM_POINTERS_MAX][RM_LIST_BYTES_MAX];
};

static int take_lists(const struct relay_state *state, const struct rm_layout *layout,
		      char *parameters, struct lists *lists)
{
	uint32_t length = 0;

	if (layout->count)
		memcpy(&length, parameters + layout->length, sizeof(length));
	if (length > RM_LIST_BYTES_MAX / (layout->element ? layout->element : 1))
		return E2BIG;
	lists->bytes = length * layout->element;
	for (uint32_t i = 0; i < layout->count; i++) {
		char *pointer = parameters + layout->pointers[i];
		uint64_t copy = (uintptr_t)lists->copies[i];

		memcpy(&lists->at[i], pointer, sizeof(lists->at[i]));
		if (!lists->at[i])
			continue;
		if (!relay_take(state, lists->copies[i], lists->at[i], lists->bytes))
			return EFAULT;
		memcpy(pointer, &copy, sizeof(copy));
	}
	return 0;
}

static bool give_lists(const struct relay_state *state, const struct rm_layout *layout,
		       char *parameters, const struct lists *lists)
{
	bool given = true;

	for (uint32_t i = 0; i < layout->count; i++) {
		memcpy(parameters + layout->pointers[i], &lists->at[i], sizeof(lists->at[i]));
		if (lists->at[i])
			given = relay_give(state, lists->at[i], lists->copies[i], lists->bytes) && given;
	}
	return given;
}

static int make_control(struct relay_state *state, int file, struct rm_control *control, char *parameters)
{
	const struct rm_layout *layout = rm_control_layout(control->cmd);
	static struct lists lists;
	uint64_t parameters_at = control->params;
	int error = take_lists(state, layout, parameters, &lists);

	if (error)
		return error;
	control->params = parameters_at ? (uintptr_t)parameters : 0;
	error = relay_make(file, RM_ESC_CONTROL, sizeof(*control), control);
	control->params = parameters_at;
	if (!give_lists(state, layout, parameters, &lists) ||
	    (parameters_at && !relay_give(state, parameters_at, parameters, control->params_size)))
		return EFAULT;
	if (!error && control->status == RM_OK)
		rm_note_control(state->objects, control, parameters);
	return error;
}

static int perform_control(struct relay_state *state, struct relay_call *call, int file)
{
	static _Alignas(8) char parameters[RM_CONTROL_BYTES_MAX];
	struct rm_control control;
	int error = 0;

	if (!relay_take(state, &control, call->address, sizeof(control)))
		return EFAULT;
	memset(parameters, 0, sizeof(parameters));
	if (!state->known) {
		relay_refuse(call, "driver", 0);
		control.status = RM_ERR_NOT_SUPPORTED;
	} else if (control.params_size > sizeof(parameters)) {
		relay_refuse(call, "parameters", control.params_size);
		control.status = RM_ERR_INVALID_PARAM_STRUCT;
	} else if (control.params && !relay_take(state, parameters, control.params, control.params_size)) {
		return EFAULT;
	} else {
		control.status = rm_check_control(state->objects, &control, parameters);
		if (control.status) {
			relay_refuse(call, "control", control.cmd);
		} else if (!rm_concerns_gate(control.cmd)) {
			error = make_control(state, file, &control, parameters);
		} else {
			if (!fence_enter(state->books))
				return RELAY_HELD;
			error = make_control(state, file, &control, parameters);
			fence_leave(state->books);
		}
	}
	return relay_give(state, call->address, &control, sizeof(control)) ? error : EFAULT;
}

/* Unwraps a call from its envelope.  A wrapped call that the relay does not perform is refused. */
static int open_envelope(const struct relay_state *state, struct relay_call *call)
{
	struct rm_xfer envelope;

	if (!relay_take(state, &envelope, call->address, sizeof(envelope)))
		return EFAULT;
	call->escape = envelope.cmd;
	call->bytes = envelope.size;
	call->address = envelope.pointer;
	if (rm_is_performed(call->escape, call->bytes) ||
	    (state->books && call->escape == RM_ESC_HEAP && call->bytes == sizeof(struct rm_heap)))
		return 0;
	relay_refuse(call, "envelope", call->escape);
	return EPERM;
}

int relay_perform(struct relay_state *state, struct relay_call *call)
{
	int error = call->escape == RM_ESC_XFER ? open_envelope(state, call) : 0, file;

	if (error)
		return error;
	file = pidfd_getfd(state->process, call->file, 0);
	if (file < 0)
		return EBADF;
	if (!fence_is_device(state->books, file)) {
		close(file);
		return ENOTTY;
	}
	switch (call->escape) {
	case RM_ESC_CHECK_VERSION:
		error = check_version(state, call, file);
		break;
	case RM_ESC_ALLOC:
		error = perform_alloc(state, call, file);
		break;
	case RM_ESC_FREE:
		error = perform_free(state, call, file);
		break;
	case RM_ESC_DUP:
		error = perform_dup(state, call, file);
		break;
	case RM_ESC_HEAP:
		error = relay_perform_heap(state, call, file);
		break;
	default:
		error = perform_control(state, call, file);
	}
	close(file);
	return error;
}
