// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/rm_calls.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "executor/fence/rm_numbers.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))

bool rm_is_performed(uint32_t escape, uint32_t bytes)
{
	switch (escape) {
	case RM_ESC_CHECK_VERSION:
		return bytes == sizeof(struct rm_version);
	case RM_ESC_ALLOC:
		return bytes == sizeof(struct rm_alloc_short) || bytes == sizeof(struct rm_alloc_long);
	case RM_ESC_FREE:
		return bytes == sizeof(struct rm_free);
	case RM_ESC_CONTROL:
		return bytes == sizeof(struct rm_control);
	case RM_ESC_DUP:
		return bytes == sizeof(struct rm_dup);
	default:
		return false;
	}
}

enum rm_action rm_request(uint32_t request, uint32_t *escape, uint32_t *bytes)
{
	*escape = _IOC_NR(request);
	*bytes = _IOC_SIZE(request);
	for (unsigned int i = 0; rm_continued_uvm[i]; i++)
		if (request == rm_continued_uvm[i])
			return RM_CONTINUE;
	if (_IOC_TYPE(request) != RM_MAGIC || _IOC_DIR(request) != (_IOC_READ | _IOC_WRITE))
		return RM_REFUSE;
	for (unsigned int i = 0; rm_continued[i]; i++)
		if (*escape == rm_continued[i])
			return RM_CONTINUE;
	if (*escape == RM_ESC_XFER && *bytes == sizeof(struct rm_xfer))
		return RM_PERFORM;
	return rm_is_performed(*escape, *bytes) ? RM_PERFORM : RM_REFUSE;
}

static const struct rm_class classes[] = {
	{ RM_CLASS_ROOT, 4 }, { 0x1, 4 }, { RM_CLASS_ROOT_CLIENT, 4 },
	{ RM_CLASS_DEVICE, 56 }, { RM_CLASS_SUBDEVICE, 4 }, { RM_CLASS_GROUP, 20 },
	/* channels: Volta, Turing, Ampere, Hopper */
	{ 0xc36f, 376 }, { 0xc46f, 376 }, { 0xc56f, 376 }, { 0xc86f, 376 },
	/* memory */
	{ 0x3e, 128 }, { 0x40, 128 }, { 0x70, 24 }, { 0x50a0, 128 },
	{ 0x79, 24 },	/* EVENT_OS_EVENT */
	{ 0xde, 8 },	/* RM_USER_SHARED_DATA */
	{ 0x9067, 12 },	/* CONTEXT_SHARE */
	{ 0x90f1, 64 },	/* VASPACE */
	{ 0x2081, 4 },	/* BINAPI */
	{ 0x83de, 12 },	/* DEBUGGER, which every context needs */
	{ 0x90e6, 0 },	/* SUBDEVICE_MASTER */
	{ 0xcb33, 4 },	/* CONFIDENTIAL_COMPUTE */
	/* doorbells */
	{ 0xc361, 0 }, { 0xc461, 0 }, { 0xc661, 2 },
	/* copy engines: Turing, Ampere, Hopper */
	{ 0xc5b5, 8 }, { 0xc6b5, 8 }, { 0xc7b5, 8 }, { 0xc8b5, 8 },
	/* compute: Volta, Turing, Ampere, Ada, Hopper */
	{ 0xc3c0, 16 }, { 0xc5c0, 16 }, { 0xc6c0, 16 }, { 0xc7c0, 16 }, { 0xc9c0, 16 }, { 0xcbc0, 16 },
};

const struct rm_class *rm_class_find(uint32_t number)
{
	for (unsigned int i = 0; i < COUNT(classes); i++)
		if (classes[i].number == number)
			return &classes[i];
	return NULL;
}

static bool is_root(uint32_t number)
{
	return number == RM_CLASS_ROOT || number == 0x1 || number == RM_CLASS_ROOT_CLIENT;
}

static enum rm_kind kind_of(uint32_t number)
{
	if (is_root(number))
		return RM_CLIENT;
	if (number == RM_CLASS_DEVICE)
		return RM_DEVICE;
	if (number == RM_CLASS_SUBDEVICE)
		return RM_SUBDEVICE;
	if (number == RM_CLASS_GROUP)
		return RM_GROUP;
	if (rm_is_compute(number))
		return RM_COMPUTE;
	return (number & 0xff) == RM_CLASS_CHANNEL_LOW_BYTE ? RM_CHANNEL : RM_UNTRACKED;
}

static uint32_t word(const void *parameters, unsigned int at)
{
	uint32_t value;

	memcpy(&value, (const char *)parameters + at, sizeof(value));
	return value;
}

/*
 * Do the parameters name another client, with which the object would be shared or which would be
 * watched? Even another client of the same child is refused: the table may still list a client
 * whose file was closed, and another tenant may have that client's handle by now.
 */
static bool names_another(uint32_t client, uint32_t number, const void *parameters)
{
	switch (number) {
	case RM_CLASS_DEVICE:	/* hClientShare, hTargetClient */
		return (word(parameters, 4) && word(parameters, 4) != client) ||
		       (word(parameters, 8) && word(parameters, 8) != client);
	case 0x79:	/* hParentClient */
		return word(parameters, 0) != client;
	case 0x83de:	/* hAppClient */
		return word(parameters, 4) && word(parameters, 4) != client;
	case 0xcb33:	/* hClient */
		return word(parameters, 0) && word(parameters, 0) != client;
	default:
		return false;
	}
}

bool rm_is_compute(uint32_t number)
{
	return (number & 0xff) == RM_CLASS_COMPUTE_LOW_BYTE && number >= RM_CLASS_COMPUTE_FIRST;
}

/*
 * Is this a channel in which kernels may run? It must belong to a group of a graphics engine, not
 * of a copy engine, because the gate sets the timeslices of such groups only.  The gate also needs
 * a subdevice, to close the group and to make its kernels preemptible.
 */
static bool is_for_kernels(struct rm_objects *objects, const struct rm_object *channel)
{
	const struct rm_object *group = channel && channel->kind == RM_CHANNEL ?
						rm_find(objects, channel->client, channel->parent) : NULL;

	return group && group->engine >= RM_ENGINE_GR0 && group->engine <= RM_ENGINE_GR_LAST &&
	       rm_subdevice(objects, group->client, group->parent);
}

uint32_t rm_check_alloc(struct rm_objects *objects, const struct rm_alloc_long *alloc,
			const void *parameters, uint32_t bytes, struct rm_object *made)
{
	enum rm_kind kind = kind_of(alloc->class_id);
	const struct rm_object *parent;

	*made = (struct rm_object){ .client = alloc->client, .parent = alloc->parent, .kind = kind };
	if (!rm_class_find(alloc->class_id))
		return RM_ERR_INVALID_CLASS;
	if (alloc->flags)
		return RM_ERR_INVALID_PARAM_STRUCT;
	if (kind != RM_UNTRACKED && rm_is_full(objects, kind))
		return RM_ERR_INSUFFICIENT_RESOURCES;
	if (kind == RM_CLIENT)
		return RM_OK;
	if (!rm_owns(objects, alloc->client) || names_another(alloc->client, alloc->class_id, parameters))
		return RM_ERR_INVALID_CLIENT;
	if (kind == RM_GROUP) {
		if (bytes != sizeof(struct rm_group_params))
			return RM_ERR_INVALID_PARAM_STRUCT;
		made->engine = ((const struct rm_group_params *)parameters)->engine_type;
		if (((const struct rm_group_params *)parameters)->from_vgpu_plugin)
			return RM_ERR_INSUFFICIENT_PERMISSIONS;
	}
	/*
	 * For a channel outside of a group the driver would make a group implicitly, which the gate
	 * would not know.
	 */
	parent = rm_find(objects, alloc->client, alloc->parent);
	if (kind == RM_CHANNEL && (!parent || parent->kind != RM_GROUP))
		return RM_ERR_INVALID_OBJECT_PARENT;
	if (kind != RM_UNTRACKED && !parent)
		return RM_ERR_INVALID_OBJECT_PARENT;
	if (rm_is_compute(alloc->class_id) && !is_for_kernels(objects, parent))
		return RM_ERR_INVALID_OBJECT_PARENT;
	return RM_OK;
}

uint32_t rm_check_dup(struct rm_objects *objects, const struct rm_dup *dup)
{
	const struct rm_object *source = rm_find(objects, dup->source_client, dup->source_object);
	const struct rm_object *parent = rm_find(objects, dup->client, dup->parent);

	if (!rm_owns(objects, dup->client) || dup->source_client != dup->client)
		return RM_ERR_INVALID_CLIENT;
	if (source && source->kind != RM_COMPUTE)
		return RM_ERR_INSUFFICIENT_PERMISSIONS;
	/*
	 * Objects that work on a channel are checked when they are made, and duplicating one would
	 * bypass that check.
	 */
	if (parent && (parent->kind == RM_CHANNEL || parent->kind == RM_GROUP))
		return RM_ERR_INVALID_OBJECT_PARENT;
	return RM_OK;
}

bool rm_is_known(const char *version, uint32_t bytes)
{
	char text[16] = { 0 };

	for (uint32_t i = 0; i < bytes && i < sizeof(text) - 1 && isdigit((unsigned char)version[i]); i++)
		text[i] = version[i];
	return strtoul(text, NULL, 10) == RM_GATE_MAJOR && version[strlen(text)] == '.';
}
