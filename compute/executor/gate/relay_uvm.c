// SPDX-License-Identifier: Apache-2.0
/*
 * Calls about managed memory that name a client.  The driver gives access to a client's objects
 * only to the process that made the client, identified by its PID.  A child's clients are made by
 * its relay.  So the relay makes these calls, too, on the child's file, which still refers to the
 * child's memory.
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "executor/fence/books.h"
#include "executor/gate/relay_call.h"
#include "executor/gate/rm_calls.h"
#include "executor/gate/uvm_abi.h"

/**
 * struct layout - layout of a call's structure
 * @bytes: size of the structure
 * @file: offset of a descriptor of the client's file; @client and @status are offsets, too
 */
struct layout {
	uint32_t number;
	uint32_t bytes;
	uint32_t file;
	uint32_t client;
	uint32_t status;
};

#define LAYOUT(call, type)						\
	{								\
		call, sizeof(struct type), offsetof(struct type, file),	\
		offsetof(struct type, client), offsetof(struct type, status) \
	}

static const struct layout layouts[] = {
	LAYOUT(UVM_REGISTER_GPU_VASPACE, uvm_register_gpu_vaspace),
	LAYOUT(UVM_REGISTER_CHANNEL, uvm_register_channel),
	LAYOUT(UVM_MAP_EXTERNAL_ALLOCATION, uvm_map_external_allocation),
};

static const struct layout *find(uint32_t number)
{
	for (unsigned int i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
		if (layouts[i].number == number)
			return &layouts[i];
	return NULL;
}

bool relay_is_uvm(uint32_t request)
{
	return find(request);
}

/* Makes the call with the relay's own descriptor of the client's file. */
static int make(const struct relay_state *state, const struct layout *layout, int file,
		const struct rm_object *client, char *parameters)
{
	int own = relay_client_file(state, client), error = 0;
	int32_t childs;

	if (own < 0)
		return EBADF;
	memcpy(&childs, parameters + layout->file, sizeof(childs));
	memcpy(parameters + layout->file, &own, sizeof(own));
	if (ioctl(file, (unsigned long)layout->number, parameters) < 0)
		error = errno;
	memcpy(parameters + layout->file, &childs, sizeof(childs));
	close(own);
	return error;
}

int relay_perform_uvm(struct relay_state *state, struct relay_call *call)
{
	static _Alignas(8) char parameters[sizeof(struct uvm_map_external_allocation)];
	const struct layout *layout = find(call->escape);
	const struct rm_object *client;
	uint32_t handle, status = 0;
	int file, error = 0;

	if (!layout)
		return EPERM;
	if (!relay_take(state, parameters, call->address, layout->bytes))
		return EFAULT;
	memcpy(&handle, parameters + layout->client, sizeof(handle));
	client = rm_find(state->objects, handle, handle);
	if (!state->known) {
		relay_refuse(call, "driver", 0);
		status = RM_ERR_NOT_SUPPORTED;
	} else if (!client) {
		relay_refuse(call, "client", handle);
		status = RM_ERR_INVALID_CLIENT;
	}
	if (status) {
		memcpy(parameters + layout->status, &status, sizeof(status));
	} else {
		file = pidfd_getfd(state->process, call->file, 0);
		if (file < 0)
			return EBADF;
		if (!fence_is_device(state->books, file))
			error = ENOTTY;
		else if (!fence_enter(state->books))
			error = RELAY_HELD;
		else
			error = make(state, layout, file, client, parameters);
		if (error != RELAY_HELD && error != ENOTTY)
			fence_leave(state->books);
		close(file);
		if (error == RELAY_HELD)
			return error;
	}
	return relay_give(state, call->address, parameters, layout->bytes) ? error : EFAULT;
}
