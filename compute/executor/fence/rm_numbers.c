// SPDX-License-Identifier: Apache-2.0
#include "executor/fence/rm_numbers.h"

#include "rm_abi.h"

/*
 * Calls about memory, events and the machine.  None of these calls makes or changes a channel: for
 * those that make an object, the driver accepts only classes of memory.  RM_ALLOC_MEMORY allocates
 * host memory, some of it from the caller's own pages, so no other process can make the call in the
 * caller's place.  For a caller with CAP_SYS_ADMIN, RM_ALLOC_MEMORY can also allocate any GPU
 * memory; for other callers it cannot.
 */
const uint8_t rm_continued[] = {
	0x27,	/* RM_ALLOC_MEMORY */
	RM_ESC_HEAP,
	0x4e,	/* RM_MAP_MEMORY */
	0x4f,	/* RM_UNMAP_MEMORY */
	0x5e,	/* RM_UPDATE_DEVICE_MAPPING_INFO */
	200,	/* CARD_INFO */
	201,	/* REGISTER_FD */
	206,	/* ALLOC_OS_EVENT */
	207,	/* FREE_OS_EVENT */
	212,	/* ATTACH_GPUS_TO_FD */
	214,	/* SYS_PARAMS */
	215,	/* NUMA_INFO */
	218,	/* WAIT_OPEN_COMPLETE */
	0,
};

/*
 * Calls on /dev/nvidia-uvm, as whole numbers.  The driver's other files accept none of them,
 * because they encode a size of 0 or of more than 4096 bytes.  None of these calls makes a channel.
 * Calls 28 and 37 may name a client; they then fail, because a child itself owns no client.  Calls
 * that must name a client are in relay_uvm.c.  Calls that place and migrate managed memory are not
 * in this list, because the driver copies that memory on channels of its own.
 */
const uint32_t rm_continued_uvm[] = {
	0x30000001,	/* INITIALIZE */
	0x30000002,	/* DEINITIALIZE */
	23, 24,	/* CREATE_RANGE_GROUP, DESTROY_RANGE_GROUP */
	26, 28, 34,	/* UNREGISTER_GPU_VASPACE, UNREGISTER_CHANNEL, FREE */
	37, 38,	/* REGISTER_GPU, UNREGISTER_GPU */
	39,	/* PAGEABLE_MEM_ACCESS */
	65, 66,	/* MAP_DYNAMIC_PARALLELISM_REGION, UNMAP_EXTERNAL */
	68,	/* ALLOC_SEMAPHORE_POOL */
	72, 73, 75,	/* VALIDATE_VA_RANGE, CREATE_EXTERNAL_RANGE, MM_INITIALIZE */
	0,
};
