// SPDX-License-Identifier: Apache-2.0
/*
 * The older call to allocate memory.  A child's call continues unchanged, because the call can make
 * only memory.  A fence has to count the memory of a native program.
 */
#include <errno.h>

#include "executor/fence/books.h"
#include "executor/gate/relay_call.h"
#include "executor/gate/rm_calls.h"

int relay_perform_heap(struct relay_state *state, struct relay_call *call, int file)
{
	struct rm_heap heap;
	uint64_t memory = 0;
	bool frees;
	int error = 0;

	if (!relay_take(state, &heap, call->address, sizeof(heap)))
		return EFAULT;
	frees = heap.function == RM_HEAP_FREE;
	if (!rm_owns(state->objects, heap.client))
		heap.status = RM_ERR_INVALID_CLIENT;
	/* This call could free any object, even an object that the gate must know. */
	else if (frees && rm_find(state->objects, heap.client, heap.memory))
		heap.status = RM_ERR_INSUFFICIENT_PERMISSIONS;
	else if ((heap.function != RM_HEAP_ALLOC_SIZE && !frees) || (!frees && heap.address))
		heap.status = RM_ERR_INSUFFICIENT_PERMISSIONS;
	else
		heap.status = state->known ? RM_OK : RM_ERR_NOT_SUPPORTED;
	if (!frees && !(heap.flags & RM_MEMORY_FLAG_VIRTUAL) &&
	    RM_MEMORY_LOCATION(heap.attributes) != RM_MEMORY_OF_HOST)
		memory = heap.size;
	if (!heap.status && !fence_take_memory(state->books, memory))
		heap.status = RM_ERR_NO_MEMORY;
	if (heap.status) {
		relay_refuse(call, "heap", heap.function);
	} else {
		error = relay_make(file, RM_ESC_HEAP, sizeof(heap), &heap);
		if (error || heap.status != RM_OK)
			fence_give_memory(state->books, memory);
		else if (frees)
			fence_note_freed(state->books, heap.client, heap.memory, false);
		else
			fence_note_memory(state->books, heap.client, heap.parent, heap.memory, memory);
	}
	return relay_give(state, call->address, &heap, sizeof(heap)) ? error : EFAULT;
}
