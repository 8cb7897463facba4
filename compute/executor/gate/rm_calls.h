/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a child's ioctl() on a file of NVIDIA's driver.  Nothing here makes a call.
 *
 * The request number is in a register, which nobody can change any more; what the
 * argument points to can change at any time.  So a call may CONTINUE in the child only if
 * its number alone says that it is harmless, whatever the memory then holds.  All others
 * are performed by the relay on copies, and these decide:
 *
 *	what			where it is decided
 *	the number		rm_request()
 *	an allocation		rm_check_alloc()
 *	a control call		rm_check_control(), rm_control_layout()
 *	a second handle		rm_check_dup()
 *	managed memory		relay_perform_uvm()
 *
 * The driver looks at the low byte of the number and at its size, not at its letter: a
 * number with another letter is none of the driver's here.
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
 * rm_request() - what its number says of an ioctl()
 * @escape: of RM_PERFORM: which call, or RM_ESC_XFER for one in an envelope
 * @bytes: of RM_PERFORM: of its structure
 */
enum rm_action rm_request(uint32_t request, uint32_t *escape, uint32_t *bytes);

/* Is this a call that is performed, with a structure of this size? */
bool rm_is_performed(uint32_t escape, uint32_t bytes);

/**
 * struct rm_class - a class of objects that a child may make
 * @bytes: of its parameters, for a caller that gives no size
 */
struct rm_class {
	uint32_t number;
	uint32_t bytes;
};

const struct rm_class *rm_class_find(uint32_t number);
/* Does an object of the class let its channel run kernels? */
bool rm_is_compute(uint32_t number);
/* The longest parameters of a class, whatever size is given. */
#define RM_CLASS_BYTES_MAX	1024u

/**
 * rm_check_alloc() - may this object be made?
 * @parameters: a copy of them, zeros behind what the child has given
 * @bytes: of what it has given
 * @made: out: what is to be added to @objects when the driver has made it, without handle
 *
 * Return: RM_OK, or the status that the child is told.
 */
uint32_t rm_check_alloc(struct rm_objects *objects, const struct rm_alloc_long *alloc,
			const void *parameters, uint32_t bytes, struct rm_object *made);

#define RM_POINTERS_MAX	3u
/* The longest list that a control call's parameters point to, and the longest parameters. */
#define RM_LIST_BYTES_MAX	16384u
#define RM_CONTROL_BYTES_MAX	(64u << 10)

/**
 * struct rm_layout - where a control call's parameters point
 * @bytes: of the parameters; 0: of any size, without pointers
 * @pointers: offsets of pointers, @count of them
 * @length: offset of the number of elements that each points to
 * @element: bytes of an element
 */
struct rm_layout {
	uint32_t command;
	uint32_t bytes;
	uint32_t count;
	uint32_t pointers[RM_POINTERS_MAX];
	uint32_t length;
	uint32_t element;
};

/* NULL for a call that no child may make. */
const struct rm_layout *rm_control_layout(uint32_t command);

/* Return: RM_OK, or the status that the child is told. */
uint32_t rm_check_control(struct rm_objects *objects, const struct rm_control *control,
			  const void *parameters);
/* Does a control call change what the gate stops? */
bool rm_concerns_gate(uint32_t command);
/* The driver has carried it out. */
void rm_note_control(struct rm_objects *objects, const struct rm_control *control, const void *parameters);
uint32_t rm_check_dup(struct rm_objects *objects, const struct rm_dup *dup);

/* Is this the text of a driver on which the gate is known to work? */
bool rm_is_known(const char *version, uint32_t bytes);

#endif /* VGPU_EXECUTOR_RM_CALLS_H */
