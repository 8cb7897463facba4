/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on /dev/nvidia-uvm that name a client of the resource manager.  Sizes and offsets are those
 * of uvm_ioctl.h in the open kernel modules, branches 550 to 580.  The request number of such a
 * call does not encode the size of its structure.
 */
#ifndef VGPU_EXECUTOR_UVM_ABI_H
#define VGPU_EXECUTOR_UVM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define UVM_REGISTER_GPU_VASPACE 25u
#define UVM_REGISTER_CHANNEL 27u
#define UVM_MAP_EXTERNAL_ALLOCATION 33u

#define UVM_GPUS_MAX 256u

struct uvm_register_gpu_vaspace {
	uint8_t gpu[16];
	int32_t file;
	uint32_t client;
	uint32_t vaspace;
	uint32_t status;
};

struct uvm_register_channel {
	uint8_t gpu[16];
	int32_t file;
	uint32_t client;
	uint32_t channel;
	uint64_t base;
	uint64_t length;
	uint32_t status;
};

struct uvm_mapping {
	uint8_t gpu[16];
	uint32_t type;
	uint32_t caching;
	uint32_t format;
	uint32_t element_bits;
	uint32_t compression;
};

struct uvm_map_external_allocation {
	uint64_t base;
	uint64_t length;
	uint64_t offset;
	struct uvm_mapping mappings[UVM_GPUS_MAX];
	uint64_t count;
	int32_t file;
	uint32_t client;
	uint32_t memory;
	uint32_t status;
};

static_assert(sizeof(struct uvm_register_gpu_vaspace) == 32, "UVM_REGISTER_GPU_VASPACE");
static_assert(offsetof(struct uvm_register_gpu_vaspace, file) == 16, "rmCtrlFd");
static_assert(offsetof(struct uvm_register_gpu_vaspace, status) == 28, "rmStatus");
static_assert(sizeof(struct uvm_register_channel) == 56, "UVM_REGISTER_CHANNEL");
static_assert(offsetof(struct uvm_register_channel, base) == 32, "base");
static_assert(offsetof(struct uvm_register_channel, status) == 48, "rmStatus");
static_assert(sizeof(struct uvm_mapping) == 36, "UvmGpuMappingAttributes");
static_assert(sizeof(struct uvm_map_external_allocation) == 9264, "UVM_MAP_EXTERNAL_ALLOCATION");
static_assert(offsetof(struct uvm_map_external_allocation, count) == 9240, "gpuAttributesCount");
static_assert(offsetof(struct uvm_map_external_allocation, file) == 9248, "rmCtrlFd");
static_assert(offsetof(struct uvm_map_external_allocation, status) == 9260, "rmStatus");

#endif /* VGPU_EXECUTOR_UVM_ABI_H */
