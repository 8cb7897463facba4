/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides about a child's ioctl() calls on files of NVIDIA's driver.  Nothing here makes a call.
 *
 * The request number is in a register, which nobody can change any more.  The memory that the
 * argument points to can change at any time.  So a call may CONTINUE in the child only if its
 * number alone shows that it is harmless, whatever that memory holds.  The relay performs all other
 * calls on copies, and these functions decide:
 *
 *	what			where it is decided
 *	the number		rm_request()
 *	an allocation		rm_check_alloc()
 *	a control call		rm_check_control(), rm_control_layout()
 *	a second handle		rm_check_dup()
 *	managed memory		relay_perform_uvm()
 *
 * The driver checks the low byte of the number and its size, but not its letter.  Here, a number
 * with another letter is not a call to the driver.
 */
#ifndef VGPU_EXECUTOR_RM_CALLS_H
#define VGPU_EXECUTOR_RM_CALLS_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/gate/rm_objects.h"
#include "rm_abi.h"

enum rm_action {
	RM_REFUSE,	/* with an errno value */
	RM_CONTINUE,
	RM_PERFORM,
};

/**
 * rm_request() - classify an ioctl() by its request number
 * @escape: out, for RM_PERFORM: which call, or RM_ESC_XFER for a call in an envelope
 * @bytes: out, for RM_PERFORM: size of its structure
 */
enum rm_action rm_request(uint32_t request, uint32_t *escape, uint32_t *bytes);

/* Does the relay perform this call with a structure of this size? */
bool rm_is_performed(uint32_t escape, uint32_t bytes);

/**
 * struct rm_class - a class of objects that a child may make
 * @bytes: size of its parameters, for a caller that gives no size
 */
struct rm_class {
	uint32_t number;
	uint32_t bytes;
};

const struct rm_class *rm_class_find(uint32_t number);
/* Does an object of this class enable its channel to run kernels? */
bool rm_is_compute(uint32_t number);
/* Maximum size of a class's parameters, whatever size the caller gives. */
#define RM_CLASS_BYTES_MAX	1024u

/**
 * rm_check_alloc() - may this object be made?
 * @parameters: a copy of the parameters, padded with zeros
 * @bytes: size of the parameters that the child gave
 * @made: out: entry to add to @objects when the driver has made the object; its handle is not set
 *
 * Return: RM_OK, or the status to return to the child.
 */
uint32_t rm_check_alloc(struct rm_objects *objects, const struct rm_alloc_long *alloc,
			const void *parameters, uint32_t bytes, struct rm_object *made);

#define RM_POINTERS_MAX	3u
/* Maximum size of a list that a control call's parameters point to, and of the parameters. */
#define RM_LIST_BYTES_MAX	16384u
#define RM_CONTROL_BYTES_MAX	(64u << 10)

/**
 * struct rm_layout - where a control call's parameters have pointers
 * @bytes: size of the parameters; 0: any size, without pointers
 * @pointers: offsets of the pointers, @count of them
 * @length: offset of the number of elements that each pointer refers to
 * @element: size of an element
 */
struct rm_layout {
	uint32_t command;
	uint32_t bytes;
	uint32_t count;
	uint32_t pointers[RM_POINTERS_MAX];
	uint32_t length;
	uint32_t element;
};

/* Return: NULL for a call that no child may make. */
const struct rm_layout *rm_control_layout(uint32_t command);

/* Return: RM_OK, or the status to return to the child. */
uint32_t rm_check_control(struct rm_objects *objects, const struct rm_control *control,
			  const void *parameters);
/* Does this control call change objects that the gate stops? */
bool rm_concerns_gate(uint32_t command);
/* Records a control call that the driver has executed. */
void rm_note_control(struct rm_objects *objects, const struct rm_control *control, const void *parameters);
uint32_t rm_check_dup(struct rm_objects *objects, const struct rm_dup *dup);

/* Is this the version text of a driver on which the gate is known to work? */
bool rm_is_known(const char *version, uint32_t bytes);

#endif /* VGPU_EXECUTOR_RM_CALLS_H */
