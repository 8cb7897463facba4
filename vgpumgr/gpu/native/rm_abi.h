/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few structures of NVIDIA's resource manager (RM) that pass through ioctl() and that the shim
 * and the executor's relay read. Names, sizes and offsets are those of the open kernel modules
 * (nvos.h, nv-ioctl.h, ctrla06c.h, ctrl2080gr.h, ctrl2080fifo.h). They are the same in the driver
 * branches RM_MAJOR_FIRST to RM_MAJOR_LAST, except for one structure that has grown, whose size
 * tells the version.
 *
 * The gate of the executor stops channels on RM_GATE_MAJOR alone, where it was measured.
 */
#ifndef VGPUMGR_RM_ABI_H
#define VGPUMGR_RM_ABI_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define RM_MAJOR_FIRST 515
#define RM_MAJOR_LAST 610
#define RM_GATE_MAJOR 580

#define RM_MAGIC 'F'
#define RM_ESC_FREE 0x29
#define RM_ESC_CONTROL 0x2a
#define RM_ESC_ALLOC 0x2b
#define RM_ESC_DUP 0x34
#define RM_ESC_HEAP 0x4a
#define RM_ESC_REGISTER_FD 201
#define RM_ESC_CHECK_VERSION 210
#define RM_ESC_XFER 211

#define RM_CLASS_ROOT 0x0
#define RM_CLASS_ROOT_CLIENT 0x41
#define RM_CLASS_MEMORY 0x40 /* memory of the GPU */
#define RM_CLASS_DEVICE 0x80
#define RM_CLASS_SUBDEVICE 0x2080
#define RM_CLASS_GROUP 0xa06c
#define RM_CLASS_CHANNEL_LOW_BYTE 0x6f /* 0xc36f Volta ... 0xca6f Blackwell */

#define RM_CLASS_COMPUTE_LOW_BYTE 0xc0
#define RM_CLASS_COMPUTE_FIRST 0xc3c0 /* Volta; Blackwell has 0xcec0 */

#define RM_ENGINE_GR0 1
#define RM_ENGINE_GR_LAST 8

#define RM_ENGINE_COPY0 9
#define RM_ENGINE_COPY_LAST 18

#define RM_CMD_GROUP_SCHEDULE 0xa06c0101
#define RM_CMD_GROUP_BIND 0xa06c0102
#define RM_CMD_SET_TIMESLICE 0xa06c0103
#define RM_CMD_GET_TIMESLICE 0xa06c0104
#define RM_CMD_GROUP_GET_INFO 0xa06c0106
#define RM_CMD_CHANNEL_SCHEDULE 0xa06f0103
#define RM_CMD_CHANNEL_BIND 0xa06f0104
#define RM_CMD_DISABLE_CHANNELS 0x2080110b
#define RM_CMD_SET_PREEMPTION_MODE 0x20801210
#define RM_CMD_PREEMPTION_BIND 0x20801211

#define RM_PREEMPTION_SETS_COMPUTE 0x1
#define RM_COMPUTE_WFI 0
#define RM_COMPUTE_CILP 2

#define RM_DISABLE_CHANNELS_MAX 64

#define RM_OK 0x0
#define RM_ERR_INSUFFICIENT_RESOURCES 0x1a
#define RM_ERR_INSUFFICIENT_PERMISSIONS 0x1b
#define RM_ERR_INVALID_ARGUMENT 0x1f
#define RM_ERR_INVALID_CLASS 0x22
#define RM_ERR_INVALID_CLIENT 0x23
#define RM_ERR_INSERT_DUPLICATE_NAME 0x19
#define RM_ERR_INVALID_OBJECT_PARENT 0x36
#define RM_ERR_INVALID_PARAM_STRUCT 0x3a
#define RM_ERR_INVALID_POINTER 0x3d
#define RM_ERR_NO_MEMORY 0x51
#define RM_ERR_NOT_SUPPORTED 0x56
#define RM_ERR_OBJECT_NOT_FOUND 0x57

/* NVOS00: free an object and all below it. */
struct rm_free {
	uint32_t client;
	uint32_t parent;
	uint32_t object;
	uint32_t status;
};

/* NVOS54: a control call on an object. */
struct rm_control {
	uint32_t client;
	uint32_t object;
	uint32_t cmd;
	uint32_t flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

/* NVOS21 and NVOS64: two layouts of an allocation; the size in the ioctl number tells which. */
struct rm_alloc_short {
	uint32_t client;
	uint32_t parent;
	uint32_t object;
	uint32_t class_id;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

struct rm_alloc_long {
	uint32_t client;
	uint32_t parent;
	uint32_t object;
	uint32_t class_id;
	uint64_t params;
	uint64_t rights;
	uint32_t params_size;
	uint32_t flags;
	uint32_t status;
};

/* NVOS55: a second handle of an object, possibly in another client. */
struct rm_dup {
	uint32_t client;
	uint32_t parent;
	uint32_t object;
	uint32_t source_client;
	uint32_t source_object;
	uint32_t flags;
	uint32_t status;
};

/* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
struct rm_group_params {
	uint32_t object_error;
	uint32_t object_ecc_error;
	uint32_t vaspace;
	uint32_t engine_type;
	uint8_t from_vgpu_plugin;
};

/* NV_MEMORY_ALLOCATION_PARAMS */
struct rm_memory_params {
	uint32_t owner;
	uint32_t type;
	uint32_t flags;
	uint32_t width;
	uint32_t height;
	int32_t pitch;
	uint32_t attributes;
	uint32_t attributes2;
	uint32_t format;
	uint32_t compression;
	uint32_t zcull;
	uint64_t range_low;
	uint64_t range_high;
	uint64_t size;
	uint64_t alignment;
	uint64_t offset;
	uint64_t limit;
	uint64_t address;
	uint32_t tags[5];
	int32_t node;
};

/* The requested location of the memory. Other values than RM_MEMORY_OF_HOST can be GPU memory. */
#define RM_MEMORY_LOCATION(attributes) ((attributes) >> 25 & 3)
#define RM_MEMORY_OF_HOST 1
#define RM_MEMORY_FLAG_VIRTUAL 0x80000 /* only an address range */

/*
 * NVOS32: parameters of the older memory interface, in the layout of its function that
 * allocates.
 */
#define RM_HEAP_ALLOC_SIZE 2
#define RM_HEAP_FREE 3
struct rm_heap {
	uint32_t client;
	uint32_t parent;
	uint32_t function;
	uint32_t vaspace;
	int16_t ivc;
	uint32_t status;
	uint64_t total;
	uint64_t free;
	uint32_t owner;
	uint32_t memory;
	uint32_t type;
	uint32_t flags;
	uint32_t attributes;
	uint32_t format[6];
	uint64_t size;
	uint64_t alignment;
	uint64_t offset;
	uint64_t limit;
	uint64_t address;
	uint64_t rest[7];
};

/* NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS, and the same for a channel */
struct rm_schedule {
	uint8_t enable;
	uint8_t skip_submit;
	uint8_t skip_enable;
};

/* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
struct rm_disable_channels {
	uint8_t disable;
	uint32_t count;
	uint8_t only_scheduling;
	uint8_t rewind;
	uint64_t event;
	uint32_t clients[RM_DISABLE_CHANNELS_MAX];
	uint32_t channels[RM_DISABLE_CHANNELS_MAX];
};

/* NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_PARAMS */
struct rm_preemption_mode {
	uint32_t flags;
	uint32_t channel;
	uint32_t graphics;
	uint32_t compute;
	uint32_t route_flags;
	uint64_t route;
};

/*
 * NV2080_CTRL_GR_CTXSW_PREEMPTION_BIND_PARAMS: the same modes, with buffers for the saved state.
 * Branch 535 has 8 buffers, headers of 2025 have 9.
 */
struct rm_preemption_bind_8 {
	uint32_t flags;
	uint32_t client;
	uint32_t channel;
	uint64_t buffers[8];
	uint32_t graphics;
	uint32_t compute;
	uint32_t route_flags;
	uint64_t route;
};

struct rm_preemption_bind_9 {
	uint32_t flags;
	uint32_t client;
	uint32_t channel;
	uint64_t buffers[9];
	uint32_t graphics;
	uint32_t compute;
	uint32_t route_flags;
	uint64_t route;
};

/* nv_ioctl_rm_api_version_t */
struct rm_version {
	uint32_t cmd;
	uint32_t reply;
	char text[64];
};

/* nv_ioctl_xfer_t: an envelope for any of the calls. */
struct rm_xfer {
	uint32_t cmd;
	uint32_t size;
	uint64_t pointer;
};

static_assert(sizeof(struct rm_free) == 16, "NVOS00");
static_assert(offsetof(struct rm_free, status) == 12, "NVOS00.status");
static_assert(sizeof(struct rm_control) == 32, "NVOS54");
static_assert(offsetof(struct rm_free, object) == 8, "NVOS00.hObjectOld");
static_assert(offsetof(struct rm_control, cmd) == 8, "NVOS54.cmd");
static_assert(offsetof(struct rm_control, params) == 16, "NVOS54.params");
static_assert(offsetof(struct rm_control, params_size) == 24, "NVOS54.paramsSize");
static_assert(offsetof(struct rm_control, status) == 28, "NVOS54.status");
static_assert(sizeof(struct rm_alloc_short) == 32, "NVOS21");
static_assert(offsetof(struct rm_alloc_short, params) == 16, "NVOS21.pAllocParms");
static_assert(offsetof(struct rm_alloc_short, params_size) == 24, "NVOS21.paramsSize");
static_assert(offsetof(struct rm_alloc_short, status) == 28, "NVOS21.status");
static_assert(sizeof(struct rm_alloc_long) == 48, "NVOS64");
static_assert(offsetof(struct rm_alloc_long, class_id) == 12, "NVOS64.hClass");
static_assert(offsetof(struct rm_alloc_long, params) == 16, "NVOS64.pAllocParms");
static_assert(offsetof(struct rm_alloc_long, rights) == 24, "NVOS64.pRightsRequested");
static_assert(offsetof(struct rm_alloc_long, flags) == 36, "NVOS64.flags");
static_assert(offsetof(struct rm_alloc_long, params_size) == 32, "NVOS64.paramsSize");
static_assert(offsetof(struct rm_alloc_long, status) == 40, "NVOS64.status");
static_assert(sizeof(struct rm_dup) == 28, "NVOS55");
static_assert(offsetof(struct rm_dup, source_client) == 12, "NVOS55.hClientSrc");
static_assert(offsetof(struct rm_dup, status) == 24, "NVOS55.status");
static_assert(sizeof(struct rm_schedule) == 3, "GPFIFO_SCHEDULE");
static_assert(offsetof(struct rm_schedule, skip_enable) == 2, "bSkipEnable");
static_assert(sizeof(struct rm_disable_channels) == 536, "FIFO_DISABLE_CHANNELS");
static_assert(offsetof(struct rm_disable_channels, count) == 4, "numChannels");
static_assert(offsetof(struct rm_disable_channels, only_scheduling) == 8, "bOnlyDisableScheduling");
static_assert(offsetof(struct rm_disable_channels, event) == 16, "pRunlistPreemptEvent");
static_assert(offsetof(struct rm_disable_channels, clients) == 24, "hClientList");
static_assert(offsetof(struct rm_disable_channels, channels) == 280, "hChannelList");
static_assert(sizeof(struct rm_group_params) == 20, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS");
static_assert(offsetof(struct rm_group_params, engine_type) == 12, "engineType");
static_assert(offsetof(struct rm_group_params, from_vgpu_plugin) == 16, "bIsCallingContextVgpuPlugin");
static_assert(sizeof(struct rm_memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");
static_assert(offsetof(struct rm_memory_params, attributes) == 24, "attr");
static_assert(offsetof(struct rm_memory_params, size) == 64, "NV_MEMORY_ALLOCATION_PARAMS.size");
static_assert(offsetof(struct rm_memory_params, address) == 96, "NV_MEMORY_ALLOCATION_PARAMS.address");
static_assert(sizeof(struct rm_heap) == 184, "NVOS32");
static_assert(offsetof(struct rm_heap, status) == 20, "NVOS32.status");
static_assert(offsetof(struct rm_heap, owner) == 40, "NVOS32.data");
static_assert(offsetof(struct rm_heap, attributes) == 56, "AllocSize.attr");
static_assert(offsetof(struct rm_heap, size) == 88, "AllocSize.size");
static_assert(offsetof(struct rm_heap, address) == 120, "AllocSize.address");
static_assert(sizeof(struct rm_preemption_mode) == 32, "SET_CTXSW_PREEMPTION_MODE");
static_assert(offsetof(struct rm_preemption_mode, compute) == 12, "cilpPreemptMode");
static_assert(offsetof(struct rm_preemption_mode, channel) == 4, "hChannel");
static_assert(offsetof(struct rm_preemption_mode, route) == 24, "grRouteInfo.route");
static_assert(offsetof(struct rm_preemption_bind_8, client) == 4, "hClient of BIND");
static_assert(offsetof(struct rm_preemption_bind_9, client) == 4, "hClient of BIND with 9 buffers");
static_assert(sizeof(struct rm_preemption_bind_8) == 104, "CTXSW_PREEMPTION_BIND");
static_assert(offsetof(struct rm_preemption_bind_8, compute) == 84, "cilpPreemptMode of BIND");
static_assert(sizeof(struct rm_preemption_bind_9) == 112, "CTXSW_PREEMPTION_BIND with 9 buffers");
static_assert(offsetof(struct rm_preemption_bind_9, compute) == 92, "cilpPreemptMode of BIND with 9 buffers");
static_assert(sizeof(struct rm_version) == 72, "nv_ioctl_rm_api_version_t");
static_assert(offsetof(struct rm_version, text) == 8, "nv_ioctl_rm_api_version_t.versionString");
static_assert(sizeof(struct rm_xfer) == 16, "nv_ioctl_xfer_t");
static_assert(offsetof(struct rm_xfer, pointer) == 8, "nv_ioctl_xfer_t.ptr");

#endif
