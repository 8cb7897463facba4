// SPDX-License-Identifier: Apache-2.0
#include "executor/gate/rm_numbers.h"

#include "rm_abi.h"

/*
 * Calls about memory, events and the machine.  None makes or changes a channel: where one
 * makes an object, the driver takes classes of memory only.  RM_ALLOC_MEMORY makes memory of the
 * host, some of it from the caller's own pages, so that nobody else can make the call.  For a
 * caller with CAP_SYS_ADMIN it also gives out all memory of the GPU; others get none of that.
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
 * Of /dev/nvidia-uvm: whole numbers, of which the driver's other files take none, because
 * they say a size of 0 or more than 4096 bytes.  None makes a channel.  28 and 37 may name a
 * client, and fail if they do, since no client is the child's own; those that must are in
 * relay_uvm.c.  Those that place and migrate managed memory are missing: the driver copies it on
 * channels of its own.
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
